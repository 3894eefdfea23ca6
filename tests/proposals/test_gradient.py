"""First-order information: exact for a linear loss, equal to autograd for any."""

import pytest
import torch

from fuseprompt.proposals.base import Positions, put_stand_ins
from fuseprompt.proposals.gradient import (
    COMMON_WORDS,
    Gradient,
    common_word_embeds,
    linearise,
    mean_pieces,
)
from fuseprompt.text.retokenize import PaddedIds
from tests.proposals.fake_loss import DotLoss, exact, linear_loss, similarity_loss

TEXTS = ("An image of", "a photo", "the happy dog on a")
POSITIONS = Positions.append(TEXTS, torch.tensor([0, 1, 0]))


@pytest.mark.parametrize("num_words", [1, 5, 16])
def test_a_linear_loss_is_predicted_exactly(num_words: int) -> None:
    loss = linear_loss()
    ids = put_stand_ins(loss.tokenizer, POSITIONS)
    linear = linearise(loss, ids, POSITIONS.problems, common_word_embeds(loss, num_words))
    words = [w for w in COMMON_WORDS if len(loss.tokenizer.encode(" " + w)) == 1]
    assert len(words) >= 3
    embeds = loss.vocabulary[[loss.tokenizer.encode(" " + w)[0] for w in words]]
    got = linear.predict_mean(embeds)
    for i, (text, problem) in enumerate(zip(TEXTS, POSITIONS.problems.tolist(), strict=True)):
        want = exact(loss, [f"{text} {w}" for w in words], [problem] * len(words))
        # Pieces of the stand-in behind its first one stay beside every candidate.
        torch.testing.assert_close(got[i], want + more_pieces(loss, problem), rtol=1e-4, atol=1e-4)


def more_pieces(loss: DotLoss, problem: int) -> torch.Tensor:
    """Return what the pieces of the stand-in but the first add to a linear loss, shape (1,)."""
    pieces = loss.tokenizer.encode(" it")[1:]
    assert pieces
    return loss.loss(PaddedIds.from_lists([pieces]), torch.tensor([problem]))


def test_losses_and_gradients_are_those_of_autograd_one_by_one() -> None:
    loss = similarity_loss()
    ids = put_stand_ins(loss.tokenizer, POSITIONS)
    points = common_word_embeds(loss, 3)
    linear = linearise(loss, ids, POSITIONS.problems, points)
    for i in range(len(POSITIONS)):
        for k in range(3):
            one = torch.tensor([i])
            embeds = loss.vocabulary[ids.token_ids[one].ids].clone()
            at = int(ids.places[i])
            point = points[k].clone().requires_grad_(True)
            embeds = torch.cat([embeds[:, :at], point[None, None], embeds[:, at + 1 :]], 1)
            value = loss.loss(ids.token_ids[one], POSITIONS.problems[one], embeds=embeds)
            (grad,) = torch.autograd.grad(value.sum(), point)
            torch.testing.assert_close(linear.losses[i, k], value[0].detach(), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(linear.grads[i, k], grad, atol=1e-5, rtol=1e-4)


def test_at_a_point_the_prediction_is_the_loss() -> None:
    loss = similarity_loss()
    ids = put_stand_ins(loss.tokenizer, POSITIONS)
    points = common_word_embeds(loss, 1)
    linear = linearise(loss, ids, POSITIONS.problems, points)
    torch.testing.assert_close(linear.predict_mean(points), linear.losses)


def test_candidates_of_their_their_own_at_each_position() -> None:
    loss = similarity_loss()
    ids = put_stand_ins(loss.tokenizer, POSITIONS)
    linear = linearise(loss, ids, POSITIONS.problems, common_word_embeds(loss, 4))
    embeds = loss.vocabulary[10:17]
    shared = linear.predict_mean(embeds, gain=1.7)
    own = linear.predict_mean(embeds.expand(3, -1, -1), gain=1.7)
    torch.testing.assert_close(shared, own)


def test_the_gain_scales_changes_from_the_mean_loss() -> None:
    loss = similarity_loss()
    ids = put_stand_ins(loss.tokenizer, POSITIONS)
    linear = linearise(loss, ids, POSITIONS.problems, common_word_embeds(loss, 4))
    embeds = loss.vocabulary[10:17]
    base = linear.losses.mean(1, keepdim=True)
    once, twice = (linear.predict_mean(embeds, gain=g) - base for g in (1.0, 2.0))
    torch.testing.assert_close(2 * once, twice)


def test_nothing_holds_a_graph_also_under_no_grad() -> None:
    loss = similarity_loss()
    ids = put_stand_ins(loss.tokenizer, POSITIONS)
    with torch.no_grad():
        linear = linearise(loss, ids, POSITIONS.problems, common_word_embeds(loss, 1))
    assert not linear.grads.requires_grad
    assert not linear.losses.requires_grad
    assert linear.grads.abs().sum() > 0


def test_a_batch_of_one_is_a_batch_of_many() -> None:
    loss = similarity_loss()
    points = common_word_embeds(loss, 4)
    ids = put_stand_ins(loss.tokenizer, POSITIONS)
    many = linearise(loss, ids, POSITIONS.problems, points)
    for i, text in enumerate(TEXTS):
        one = Positions.append((text,), POSITIONS.problems[i : i + 1])
        alone = linearise(loss, put_stand_ins(loss.tokenizer, one), one.problems, points)
        torch.testing.assert_close(alone.grads[0], many.grads[i], atol=1e-5, rtol=1e-4)


def test_points() -> None:
    loss = linear_loss()
    points = common_word_embeds(loss, 2)
    ids = loss.tokenizer.encode(" " + COMMON_WORDS[1])
    torch.testing.assert_close(points[1], loss.vocabulary[ids].mean(0))
    assert len(set(COMMON_WORDS)) == len(COMMON_WORDS) == 64


@pytest.mark.parametrize("count", [0, 65])
def test_a_count_out_of_range(count: int) -> None:
    with pytest.raises(ValueError, match=f"num_words must be between 1 and 64, was: {count}"):
        Gradient(count)


def test_the_mean_of_pieces() -> None:
    vocabulary = torch.arange(12.0).reshape(4, 3)
    pieces = PaddedIds.from_lists([[1], [0, 3], [], [2, 2, 1]])
    want = torch.stack(
        [
            vocabulary[1],
            vocabulary[[0, 3]].mean(0),
            torch.zeros(3),
            vocabulary[[2, 2, 1]].mean(0),
        ]
    )
    torch.testing.assert_close(mean_pieces(vocabulary, pieces), want)
