"""What scorers say they cost, against a count of the texts that went through the secondary."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.transfer.base import GRADIENT_COST, Slots, Transfer
from fuseprompt.transfer.combined import SumTransfer, UnionTransfer
from fuseprompt.transfer.controls import NoTransfer, RandomTransfer
from fuseprompt.transfer.linearise import CommonWords, VocabularyMean
from fuseprompt.transfer.positionwise import PositionwiseTransfer
from fuseprompt.transfer.relinearized import RelinearizedTransfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.word_table import WordTable
from tests.tiny import gpt2
from tests.transfer.fake_loss import DotLoss, LinearModel, linear_loss, new_words, table_for

SLOTS = Slots.append(("An image of", "a happy"), torch.tensor([0, 1]))
TOKENS = torch.tensor([[40, 50, 60]] * 2)


@dataclass
class Counting(LinearModel):
    """Counts forward equivalents: a row is 1, a row whose gradient is taken `GRADIENT_COST`."""

    spent: float = 0.0

    def outputs(self, token_ids: PaddedIds, *, embeds: Tensor | None = None) -> Tensor:
        """Count, then answer."""
        asks_gradient = embeds is not None and embeds.requires_grad
        self.spent += len(token_ids) * (GRADIENT_COST if asks_gradient else 1.0)
        return super().outputs(token_ids, embeds=embeds)


def counting_loss() -> tuple[DotLoss, Counting]:
    loss = linear_loss()
    model = Counting(loss.tokenizer)
    return replace(loss, model=model), model


def test_the_count_tells_gradients_from_plain_texts() -> None:
    loss, model = counting_loss()
    ids = PaddedIds.from_lists([[5, 6], [7, 8]])
    loss.loss(ids, torch.tensor([0, 1]))
    assert model.spent == 2
    embeds = torch.zeros(2, 2, 6, requires_grad=True)
    loss.loss(ids, torch.tensor([0, 1]), embeds=embeds)
    assert model.spent == 2 + 2 * GRADIENT_COST


POINTS = CommonWords(2)
DIRECT = RetokenizedTransfer(POINTS)

TRANSFERS: dict[str, Callable[[Path], Transfer]] = {
    "none": lambda _: NoTransfer(),
    "random": lambda _: RandomTransfer(),
    "direct": lambda _: DIRECT,
    "mean": lambda _: RetokenizedTransfer(VocabularyMean()),
    "positionwise": lambda _: PositionwiseTransfer(POINTS),
    "relinearized": lambda _: RelinearizedTransfer(DIRECT, num_best=3),
    "table": lambda folder: WordTable(folder),
    "sum": lambda folder: SumTransfer(DIRECT, WordTable(folder)),
    "union": lambda folder: UnionTransfer(DIRECT, WordTable(folder)),
}


@pytest.mark.parametrize("name", TRANSFERS)
def test_a_scorer_counts_what_it_spends_since_it_was_bound(name: str, tmp_path: Path) -> None:
    loss, model = counting_loss()
    table = table_for(loss)
    words = new_words(table)[:20]
    scorer = TRANSFERS[name](tmp_path).bind(gpt2(), table, loss)
    model.spent = 0.0  # A word table was made, for all problems to come.
    assert scorer.cost == 0
    for _ in range(2):
        scorer.new_words(SLOTS, words)
        assert scorer.cost == model.spent
        scorer.continuations(SLOTS, TOKENS)
        assert scorer.cost == model.spent
    empty = torch.zeros(2, 0, dtype=torch.long)
    before = scorer.cost
    scorer.continuations(SLOTS, empty)
    assert scorer.cost == before


def test_two_points_in_two_slots_are_four_gradients() -> None:
    loss, _ = counting_loss()
    table = table_for(loss)
    scorer = DIRECT.bind(gpt2(), table, loss)
    scorer.new_words(SLOTS, new_words(table))
    assert scorer.cost == 4 * GRADIENT_COST


def test_last_words_that_a_table_knows_cost_nothing(tmp_path: Path) -> None:
    loss, _ = counting_loss()
    scorer = WordTable(tmp_path).bind(gpt2(), table_for(loss), loss)
    scorer.new_words(SLOTS, new_words(table_for(loss)))
    assert scorer.cost == 0
    scorer.continuations(SLOTS, TOKENS)
    once = scorer.cost
    assert 0 < once <= TOKENS.numel()
    scorer.continuations(SLOTS, TOKENS)
    assert scorer.cost == once
