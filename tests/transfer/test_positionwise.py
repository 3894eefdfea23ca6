"""The direct transfer with a slot as wide as the token."""

import pytest
import torch

from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.transfer.base import GRADIENT_COST, tokenize_new_word_slots
from fuseprompt.transfer.linearise import CommonWords
from fuseprompt.transfer.positionwise import PositionwiseTransfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from tests.tiny import gpt2
from tests.transfer.fake_loss import SLOTS, bound_term

POINTS = CommonWords(3)


def by_hand(term: BoundTerm, word: int, gain: float) -> list[float]:
    """One slot and one point at a time, with the gradient of a plain sum."""
    pieces = term.table.pieces.to_lists()[word]
    slots = tokenize_new_word_slots(term.tokenizer, SLOTS)
    results = []
    for i, row in enumerate(slots.token_ids.to_lists()):
        at = int(slots.positions[i])
        ids = row[:at] + [row[at]] * len(pieces) + row[at + 1 :]
        predictions = []
        for point in POINTS.points(term):
            embeds = term.vocabulary[torch.tensor([ids])].detach().clone()
            embeds[0, at : at + len(pieces)] = point
            embeds.requires_grad_(True)
            loss = term.loss(PaddedIds.from_lists([ids]), torch.tensor([0]), embeds=embeds)
            (grad,) = torch.autograd.grad(loss.sum(), embeds)
            change = sum(
                float(grad[0, at + j] @ (term.vocabulary[piece] - point))
                for j, piece in enumerate(pieces)
            )
            predictions.append(float(loss.detach()) + gain * change)
        results.append(sum(predictions) / len(predictions))
    return results


def words_of(term: BoundTerm, count: int) -> torch.Tensor:
    """New words of the primary that are so many pieces for the secondary."""
    return torch.nonzero(term.table.pieces.lengths == count).flatten()


@pytest.mark.parametrize("count", [1, 2])
def test_it_sums_one_dot_product_for_each_piece(count: int) -> None:
    term = bound_term()
    words = words_of(term, count)[:3]
    assert len(words) > 0
    scorer = PositionwiseTransfer(POINTS, gain=1.5).bind(gpt2(), term.table, term)
    scores = scorer.new_words(SLOTS, words)
    for column, word in enumerate(words.tolist()):
        expected = torch.tensor(by_hand(term, word, 1.5))
        torch.testing.assert_close(scores[:, column], expected, atol=1e-4, rtol=1e-4)


def test_words_of_one_piece_are_the_direct_transfer_s() -> None:
    term = bound_term()
    words = words_of(term, 1)
    one = PositionwiseTransfer(POINTS).bind(gpt2(), term.table, term).new_words(SLOTS, words)
    other = RetokenizedTransfer(POINTS).bind(gpt2(), term.table, term).new_words(SLOTS, words)
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_words_above_the_widest_slot_are_taken_for_their_mean() -> None:
    term = bound_term()
    words = torch.nonzero(term.table.pieces.lengths > 1).flatten()
    narrow = PositionwiseTransfer(POINTS, max_pieces=1).bind(gpt2(), term.table, term)
    direct = RetokenizedTransfer(POINTS).bind(gpt2(), term.table, term)
    torch.testing.assert_close(
        narrow.new_words(SLOTS, words), direct.new_words(SLOTS, words), atol=1e-4, rtol=1e-4
    )


def test_words_above_the_widest_slot_share_one_linearisation() -> None:
    term = bound_term()
    words = torch.nonzero(term.table.pieces.lengths > 0).flatten()
    assert len(torch.unique(term.table.pieces.lengths[words])) > 1
    narrow = PositionwiseTransfer(POINTS, max_pieces=1).bind(gpt2(), term.table, term)
    direct = RetokenizedTransfer(POINTS).bind(gpt2(), term.table, term)
    narrow.new_words(SLOTS, words)
    direct.new_words(SLOTS, words)
    assert narrow.cost == direct.cost > 0


def test_words_above_the_widest_slot_share_the_gradient_of_one_piece() -> None:
    term = bound_term()
    pieces = term.table.pieces.lengths
    scorer = PositionwiseTransfer(POINTS, max_pieces=1).bind(gpt2(), term.table, term)
    assert {1, 2} <= set(pieces.tolist())
    scorer.new_words(SLOTS, torch.nonzero(pieces > 0).flatten())
    assert scorer.cost == 3 * len(SLOTS) * GRADIENT_COST


def test_continuations_of_a_slot_do_not_depend_on_the_other_slots() -> None:
    term = bound_term()
    continued = [i for i, t in enumerate(gpt2().tokenizer.token_texts) if t.isalpha()][:4]
    tokens = torch.tensor([continued, continued[::-1]])
    scorer = PositionwiseTransfer(POINTS).bind(gpt2(), term.table, term)
    both = scorer.continuations(SLOTS, tokens)
    for i in range(2):
        alone = type(SLOTS)((SLOTS.left[i],), (SLOTS.right[i],), SLOTS.problems[i : i + 1])
        one = scorer.continuations(alone, tokens[i : i + 1])
        torch.testing.assert_close(one, both[i : i + 1], atol=1e-4, rtol=1e-4)


def test_the_widest_slot_is_at_least_one_position() -> None:
    with pytest.raises(ValueError, match="max_pieces must be at least 1, was: 0"):
        PositionwiseTransfer(max_pieces=0)
