"""The union of two lists."""

import torch

from fuseprompt.objective.fluency import Fluency
from fuseprompt.objective.objective import BoundTerm, Objective, Problem
from fuseprompt.objective.terms import TextSimilarity
from fuseprompt.transfer.base import Slots
from fuseprompt.transfer.controls import NoTransfer, RandomTransfer
from fuseprompt.transfer.union import UnionTransfer
from tests.tiny import gpt2, sentence_encoder

FIRST, SECOND = RandomTransfer(1), RandomTransfer(2)
SLOTS = Slots.append(("a photo of a", "the"), torch.tensor([0, 0]))


def bound_term() -> BoundTerm:
    objective = Objective([Fluency(gpt2()), TextSimilarity(sentence_encoder())])
    return objective.bind([Problem("0", {"text": "a happy dog"})]).terms[0]


def test_a_token_counts_as_high_as_the_better_of_its_two_ranks() -> None:
    term = bound_term()
    words = torch.nonzero(term.table.starts_word).flatten()
    first, second, union = (
        t.bind(gpt2(), term.table, term).new_words(SLOTS, words)
        for t in (FIRST, SECOND, UnionTransfer(FIRST, SECOND))
    )
    for row in range(len(SLOTS)):
        ranks = [x[row].argsort().argsort() for x in (first, second)]
        expected = first[row].sort().values[torch.minimum(*ranks)]
        torch.testing.assert_close(union[row], expected)
        assert union[row].argmin() in (first[row].argmin(), second[row].argmin())
        assert union[row][second[row].argmin()] == first[row].min()


def test_continuations_are_the_first_transfer_s() -> None:
    term = bound_term()
    tokens = torch.tensor([[5, 6, 7], [8, 9, 10]])
    union = UnionTransfer(FIRST, NoTransfer()).bind(gpt2(), term.table, term)
    first = FIRST.bind(gpt2(), term.table, term)
    assert torch.equal(union.continuations(SLOTS, tokens), first.continuations(SLOTS, tokens))
