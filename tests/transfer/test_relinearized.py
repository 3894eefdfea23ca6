"""The second pass of the direct transfer."""

import pytest
import torch

from fuseprompt.transfer.base import mean_pieces, tokenize_new_word_slots
from fuseprompt.transfer.controls import RandomTransfer
from fuseprompt.transfer.linearise import linearise
from fuseprompt.transfer.relinearized import RelinearizedTransfer
from tests.tiny import gpt2
from tests.transfer.fake_loss import SLOTS, bound_term


def test_it_is_the_mean_of_the_first_pass_and_one_taken_at_its_best_words() -> None:
    term = bound_term()
    words = torch.nonzero(term.table.starts_word).flatten()
    first = RandomTransfer(3)
    got = RelinearizedTransfer(first, num_best=2, gain=1.5).bind(gpt2(), term.table, term)
    once = first.bind(gpt2(), term.table, term).new_words(SLOTS, words)
    embeds = mean_pieces(term.vocabulary, term.table.pieces)[words]
    ids = tokenize_new_word_slots(term.tokenizer, SLOTS)
    rows = []
    for row in range(len(SLOTS)):
        points = embeds[once[row].argsort()[:2]]
        linear = linearise(term, ids, SLOTS.problems, points)
        rows.append(linear.predict_mean(embeds, gain=1.5)[row])
    scores = got.new_words(SLOTS, words)
    torch.testing.assert_close(scores, (once + torch.stack(rows)) / 2, atol=1e-5, rtol=1e-4)


def test_continuations_are_the_first_pass_s() -> None:
    term = bound_term()
    tokens = torch.tensor([[5, 6], [7, 8]])
    first = RandomTransfer(3)
    got = RelinearizedTransfer(first).bind(gpt2(), term.table, term).continuations(SLOTS, tokens)
    expected = first.bind(gpt2(), term.table, term).continuations(SLOTS, tokens)
    assert torch.equal(got, expected)


def test_it_needs_at_least_one_word() -> None:
    with pytest.raises(ValueError, match="num_best must be at least 1, was: 0"):
        RelinearizedTransfer(num_best=0)
