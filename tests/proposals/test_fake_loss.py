"""The fakes are what the tests take them for: linear, differentiable, and an `EmbedLoss`."""

import torch

from fuseprompt.models.base import EmbedLoss, TextModel
from fuseprompt.text.retokenize import PaddedIds
from tests.proposals.fake_loss import exact, linear_loss, similarity_loss


def test_protocols() -> None:
    for loss in (linear_loss(), similarity_loss()):
        assert isinstance(loss, EmbedLoss)
        assert isinstance(loss.model, TextModel)


def test_the_linear_loss_adds_up_over_positions_and_ignores_padding() -> None:
    loss = linear_loss()
    rows = PaddedIds.from_lists([[5], [7, 9], [5, 7, 9]])
    one, two, all_three = loss.loss(rows, torch.zeros(3, dtype=torch.long))
    torch.testing.assert_close(one + two, all_three)


def test_the_similarity_loss_is_least_at_its_own_target() -> None:
    loss = similarity_loss()
    here, there = exact(loss, ["a cat sleeps", "a happy dog"], [0, 0])
    torch.testing.assert_close(here, torch.tensor(-1.0))
    assert there > here


def test_problems_have_targets_of_their_own() -> None:
    for loss in (linear_loss(), similarity_loss()):
        first, second = exact(loss, ["a photo"] * 2, [0, 1])
        assert abs(first - second) > 1e-4
