"""First-order information: exact for a linear loss, equal to autograd for any."""

import pytest
import torch

from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.transfer.base import Slots, tokenize_new_word_slots
from fuseprompt.transfer.linearise import (
    COMMON_WORDS,
    CommonWords,
    Linearisation,
    VocabularyMean,
    linearise,
)
from tests.transfer.fake_loss import DotLoss, exact, linear_loss, similarity_loss

TEXTS = ("An image of", "a photo", "the happy dog on a")
SLOTS = Slots.append(TEXTS, torch.tensor([0, 1, 0]))
LINEARISATIONS = [VocabularyMean(), CommonWords(1), CommonWords(5), CommonWords()]


@pytest.mark.parametrize("linearisation", LINEARISATIONS, ids=lambda x: x.name)
def test_a_linear_loss_is_predicted_exactly(linearisation: Linearisation) -> None:
    loss = linear_loss()
    ids = tokenize_new_word_slots(loss.tokenizer, SLOTS)
    linear = linearise(loss, ids, SLOTS.problems, linearisation.points(loss))
    words = [w for w in COMMON_WORDS if len(loss.tokenizer.encode(" " + w)) == 1]
    assert len(words) >= 3
    embeds = loss.vocabulary[[loss.tokenizer.encode(" " + w)[0] for w in words]]
    got = linear.predict_mean(embeds)
    for i, (text, problem) in enumerate(zip(TEXTS, SLOTS.problems.tolist(), strict=True)):
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
    ids = tokenize_new_word_slots(loss.tokenizer, SLOTS)
    points = CommonWords(3).points(loss)
    linear = linearise(loss, ids, SLOTS.problems, points)
    for i in range(len(SLOTS)):
        for k in range(3):
            one = torch.tensor([i])
            embeds = loss.vocabulary[ids.token_ids[one].ids].clone()
            at = int(ids.positions[i])
            point = points[k].clone().requires_grad_(True)
            embeds = torch.cat([embeds[:, :at], point[None, None], embeds[:, at + 1 :]], 1)
            value = loss.loss(ids.token_ids[one], SLOTS.problems[one], embeds=embeds)
            (grad,) = torch.autograd.grad(value.sum(), point)
            torch.testing.assert_close(linear.losses[i, k], value[0].detach(), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(linear.grads[i, k], grad, atol=1e-5, rtol=1e-4)


def test_at_a_point_the_prediction_is_the_loss() -> None:
    loss = similarity_loss()
    ids = tokenize_new_word_slots(loss.tokenizer, SLOTS)
    points = CommonWords(1).points(loss)
    linear = linearise(loss, ids, SLOTS.problems, points)
    torch.testing.assert_close(linear.predict_mean(points), linear.losses)


def test_candidates_of_their_own_in_each_slot() -> None:
    loss = similarity_loss()
    ids = tokenize_new_word_slots(loss.tokenizer, SLOTS)
    linear = linearise(loss, ids, SLOTS.problems, CommonWords(4).points(loss))
    embeds = loss.vocabulary[10:17]
    shared = linear.predict_mean(embeds, gain=1.7)
    own = linear.predict_mean(embeds.expand(3, -1, -1), gain=1.7)
    torch.testing.assert_close(shared, own)


def test_the_gain_scales_changes_from_the_mean_loss() -> None:
    loss = similarity_loss()
    ids = tokenize_new_word_slots(loss.tokenizer, SLOTS)
    linear = linearise(loss, ids, SLOTS.problems, CommonWords(4).points(loss))
    embeds = loss.vocabulary[10:17]
    base = linear.losses.mean(1, keepdim=True)
    once, twice = (linear.predict_mean(embeds, gain=g) - base for g in (1.0, 2.0))
    torch.testing.assert_close(2 * once, twice)


def test_nothing_holds_a_graph_also_under_no_grad() -> None:
    loss = similarity_loss()
    ids = tokenize_new_word_slots(loss.tokenizer, SLOTS)
    with torch.no_grad():
        linear = linearise(loss, ids, SLOTS.problems, VocabularyMean().points(loss))
    assert not linear.grads.requires_grad
    assert not linear.losses.requires_grad
    assert linear.grads.abs().sum() > 0


def test_a_batch_of_one_is_a_batch_of_many() -> None:
    loss = similarity_loss()
    points = CommonWords(4).points(loss)
    ids = tokenize_new_word_slots(loss.tokenizer, SLOTS)
    many = linearise(loss, ids, SLOTS.problems, points)
    for i, text in enumerate(TEXTS):
        one = Slots.append((text,), SLOTS.problems[i : i + 1])
        alone = linearise(loss, tokenize_new_word_slots(loss.tokenizer, one), one.problems, points)
        torch.testing.assert_close(alone.grads[0], many.grads[i], atol=1e-5, rtol=1e-4)


def test_points() -> None:
    loss = linear_loss()
    torch.testing.assert_close(VocabularyMean().points(loss)[0], loss.vocabulary.mean(0))
    points = CommonWords(2).points(loss)
    ids = loss.tokenizer.encode(" " + COMMON_WORDS[1])
    torch.testing.assert_close(points[1], loss.vocabulary[ids].mean(0))
    assert len(set(COMMON_WORDS)) == len(COMMON_WORDS) == 64


@pytest.mark.parametrize("count", [0, 65])
def test_a_count_out_of_range(count: int) -> None:
    with pytest.raises(ValueError, match=f"num_words must be between 1 and 64, was: {count}"):
        CommonWords(count)


@pytest.mark.parametrize("linearisation", LINEARISATIONS, ids=lambda x: x.name)
def test_names_and_protocol(linearisation: Linearisation) -> None:
    assert isinstance(linearisation, Linearisation)
    assert linearisation.name in {"vocabulary-mean", "common-1", "common-5", "common-16"}


@pytest.mark.parametrize("width", [1, 3])
def test_a_wider_slot_has_a_gradient_at_each_position(width: int) -> None:
    loss = linear_loss()
    ids = tokenize_new_word_slots(loss.tokenizer, SLOTS)
    points = CommonWords(2).points(loss)
    linear = linearise(loss, ids, SLOTS.problems, points, width=width)
    assert linear.grads.shape == (len(SLOTS), 2, width * points.shape[1])
    torch.testing.assert_close(linear.points, points.repeat(1, width))
    # The loss is a sum of one linear map over positions, so all positions have its gradient.
    direction = (loss.model.matrix @ loss.targets[SLOTS.problems].mT).mT  # type: ignore[attr-defined]
    expected = direction[:, None].repeat(1, 2, width)
    torch.testing.assert_close(linear.grads, expected)


def test_pairs_of_slot_and_candidate_are_predicted_as_in_the_whole_table() -> None:
    loss = similarity_loss()
    ids = tokenize_new_word_slots(loss.tokenizer, SLOTS)
    linear = linearise(loss, ids, SLOTS.problems, CommonWords(3).points(loss))
    embeds = loss.vocabulary[20:26].float()
    whole = linear.predict_mean(embeds, gain=2.0)
    slots = torch.tensor([2, 0, 1, 1, 0, 2])
    pairs = linear.predict_pairs(slots, embeds, gain=2.0)
    torch.testing.assert_close(pairs, whole[slots, torch.arange(6)])
