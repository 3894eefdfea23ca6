"""Two transfers as one: z-scores added, or the better of two ranks, on the scale of the first."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer.base import Slots, TokenScorer
from fuseprompt.transfer.combined import BlendTransfer, SumTransfer, UnionTransfer
from fuseprompt.transfer.controls import NoTransfer, RandomTransfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.word_table import WordTable
from tests.tiny import gpt2
from tests.transfer.fake_loss import SLOTS as TEXTS
from tests.transfer.fake_loss import bound_term, linear_loss, table_for

SLOTS = Slots.append(("a", "b c"), torch.tensor([0, 1]))
FIRST, SECOND = RandomTransfer(1), RandomTransfer(2)


@dataclass(frozen=True)
class Fixed:
    """A transfer, and its scorer, whose predictions are given."""

    scores: Tensor
    name: str = "fixed"
    cost: float = 0.0

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Return itself."""
        return self

    def new_words(self, slots: Slots, words: Tensor) -> Tensor:
        """Return the columns of the words."""
        return self.scores[:, words]

    def continuations(self, slots: Slots, tokens: Tensor) -> Tensor:
        """Return the columns of the tokens."""
        return self.scores.gather(1, tokens)


def bound(first: Tensor, second: Tensor) -> TokenScorer:
    loss = linear_loss()
    return SumTransfer(Fixed(first), Fixed(second)).bind(gpt2(), table_for(loss), loss)


def z(scores: Tensor) -> Tensor:
    return (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True)


def test_new_words_are_ranked_by_the_sum_of_z_scores() -> None:
    first, second = torch.randn(2, 9), 100 * torch.randn(2, 9) + 7
    words = torch.tensor([0, 2, 3, 8])
    got = bound(first, second).new_words(SLOTS, words)
    first, second = first[:, words], second[:, words]
    torch.testing.assert_close(z(got), z(z(first) + z(second)), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(got.mean(1), first.mean(1), atol=1e-5, rtol=1e-5)


def test_two_equal_lists_keep_about_their_scale() -> None:
    first = torch.randn(2, 50)
    got = bound(first, first * 3).new_words(SLOTS, torch.arange(50))
    assert torch.equal(got.argsort(dim=1, stable=True), first.argsort(dim=1, stable=True))
    torch.testing.assert_close(got.std(1), 1.4 * first.std(1), atol=1e-4, rtol=1e-4)


def test_a_list_that_says_nothing_changes_no_order() -> None:
    first = torch.randn(2, 50)
    got = bound(first, torch.full((2, 50), 3.0)).new_words(SLOTS, torch.arange(50))
    assert torch.equal(got.argsort(dim=1, stable=True), first.argsort(dim=1, stable=True))
    assert got.isfinite().all()


def test_one_word_alone_gets_a_finite_score() -> None:
    got = bound(torch.randn(2, 5), torch.randn(2, 5)).new_words(SLOTS, torch.tensor([1]))
    assert got.isfinite().all()


def test_continuations_are_the_first_transfer_s() -> None:
    first, second = torch.randn(2, 9), torch.randn(2, 9)
    tokens = torch.tensor([[1, 2], [8, 0]])
    got = bound(first, second).continuations(SLOTS, tokens)
    assert torch.equal(got, first.gather(1, tokens))


def test_the_default_is_gradient_and_table() -> None:
    transfer = SumTransfer()
    assert transfer.name == "sum"
    assert isinstance(transfer.first, RetokenizedTransfer)
    assert isinstance(transfer.second, WordTable)


def test_a_token_counts_as_high_as_the_better_of_its_two_ranks() -> None:
    term = bound_term()
    words = torch.nonzero(term.table.starts_word).flatten()
    first, second, union = (
        t.bind(gpt2(), term.table, term).new_words(TEXTS, words)
        for t in (FIRST, SECOND, UnionTransfer(FIRST, SECOND))
    )
    for row in range(len(TEXTS)):
        ranks = [x[row].argsort().argsort() for x in (first, second)]
        expected = first[row].sort().values[torch.minimum(*ranks)]
        torch.testing.assert_close(union[row], expected)
        assert union[row].argmin() in (first[row].argmin(), second[row].argmin())
        assert union[row][second[row].argmin()] == first[row].min()


def test_continuations_of_a_union_are_the_first_transfer_s() -> None:
    term = bound_term()
    tokens = torch.tensor([[5, 6, 7], [8, 9, 10]])
    union = UnionTransfer(FIRST, NoTransfer()).bind(gpt2(), term.table, term)
    first = FIRST.bind(gpt2(), term.table, term)
    assert torch.equal(union.continuations(TEXTS, tokens), first.continuations(TEXTS, tokens))


def test_a_blend_is_the_weighted_mean_of_both_kinds_of_losses() -> None:
    loss = linear_loss()
    first, second = torch.randn(2, 9), torch.randn(2, 9)
    scorer = BlendTransfer(Fixed(first), Fixed(second), 0.75).bind(gpt2(), table_for(loss), loss)
    want = 0.25 * first + 0.75 * second
    words = torch.tensor([0, 2, 3, 8])
    torch.testing.assert_close(scorer.new_words(SLOTS, words), want[:, words])
    tokens = torch.tensor([[1, 4], [5, 0]])
    torch.testing.assert_close(scorer.continuations(SLOTS, tokens), want.gather(1, tokens))
    # A handful of candidates gets the same scores as many: nothing is standardised.
    torch.testing.assert_close(scorer.new_words(SLOTS, words[:1]), want[:, :1])


def test_a_blend_costs_what_both_cost() -> None:
    loss = linear_loss()
    pair = Fixed(torch.zeros(2, 9), cost=3.0), Fixed(torch.zeros(2, 9), cost=4.0)
    assert BlendTransfer(*pair).bind(gpt2(), table_for(loss), loss).cost == 7.0


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        BlendTransfer(share=share)
