"""The surrogate: a Gaussian process by hand, what it leaves alone, and what it refuses."""

import pytest
import torch
from torch import Tensor

from fuseprompt.transfer.surrogate import Surrogate, word_directions


def vectors(words: int = 40, width: int = 6) -> Tensor:
    return word_directions(torch.randn(words, width, generator=torch.Generator().manual_seed(0)))


def test_it_is_the_posterior_mean_of_a_gaussian_process() -> None:
    words = vectors()
    predicted = torch.linspace(0, 1, 40)
    asked = torch.tensor([3, 17, 30])
    losses = torch.tensor([0.5, 0.1, 0.9])
    setting = Surrogate(length_scale=0.7, noise=0.2, slope=0.4)
    standing = (predicted - predicted.mean()) / predicted.std(correction=0)
    kernel = torch.exp((words @ words.T - 1) / 0.7) + 0.4 * standing[:, None] * standing
    residual = losses - predicted[asked]
    gram = kernel[asked][:, asked] + (0.2 + 1e-4) * torch.eye(3)
    weights = torch.linalg.inv(gram) @ (residual - residual.mean())
    expected = predicted + residual.mean() + kernel[:, asked] @ weights
    torch.testing.assert_close(setting.correct(predicted, words, asked, losses), expected)


def test_nothing_asked_changes_nothing() -> None:
    predicted = torch.rand(40)
    none = torch.tensor([], dtype=torch.long)
    assert Surrogate().correct(predicted, vectors(), none, torch.tensor([])) is predicted


def test_words_like_a_good_one_rise() -> None:
    words = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]]))
    found = Surrogate().correct(
        torch.zeros(3), words, torch.tensor([0, 2]), torch.tensor([-1.0, 1.0])
    )
    assert found[0] < found[1] < found[2]
    assert abs(float(found[1] - found[0])) < 0.2


def test_equal_vectors_and_equal_predictions_do_no_harm() -> None:
    words = torch.nn.functional.normalize(torch.ones(5, 3))
    found = Surrogate(slope=0.5).correct(
        torch.zeros(5), words, torch.tensor([0, 1]), torch.tensor([1.0, 3.0])
    )
    torch.testing.assert_close(found, torch.full((5,), 2.0))


def test_directions_are_unit_vectors_from_the_mean() -> None:
    found = vectors()
    torch.testing.assert_close(found.norm(dim=1), torch.ones(40))
    shifted = word_directions(torch.eye(4) + 7.0)
    torch.testing.assert_close(shifted, word_directions(torch.eye(4)))


@pytest.mark.parametrize("setting", [{"length_scale": 0.0}, {"noise": -1.0}, {"slope": -0.1}])
def test_impossible_settings_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs length_scale > 0"):
        Surrogate(**setting)
