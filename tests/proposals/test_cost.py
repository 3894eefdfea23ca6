"""What scorers say they cost, against a count of the texts that went through the secondary."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Positions, Proposal
from fuseprompt.proposals.gradient import GRADIENT_COST, Gradient
from fuseprompt.proposals.language_model import LanguageModelOnly, RandomNoise
from fuseprompt.proposals.word_table import WordTable
from fuseprompt.text.retokenize import PaddedIds
from tests.proposals.fake_loss import DotLoss, LinearModel, initial_tokens, linear_loss, table_for
from tests.tiny import gpt2

POSITIONS = Positions.append(("An image of", "a happy"), torch.tensor([0, 1]))
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
    # Forward, and a backward pass of twice its operations: what every table of results counts with.
    assert GRADIENT_COST == 3.0


PROPOSALS: dict[str, Callable[[Path], Proposal]] = {
    "none": lambda _: LanguageModelOnly(),
    "random": lambda _: RandomNoise(),
    "gradient": lambda _: Gradient(2),
    "table": lambda folder: WordTable(folder),
    "additive": lambda folder: AdditiveWordTable(WordTable(folder)),
}


@pytest.mark.parametrize("name", PROPOSALS)
def test_a_scorer_counts_what_it_spends_since_it_was_bound(name: str, tmp_path: Path) -> None:
    loss, model = counting_loss()
    table = table_for(loss)
    words = initial_tokens(table)[:20]
    scorer = PROPOSALS[name](tmp_path).init(gpt2(), loss.model, table).bind(loss)
    model.spent = 0.0  # A word table was made, for all problems to come.
    assert scorer.cost == 0
    for _ in range(2):
        scorer.word_initial(POSITIONS, words)
        assert scorer.cost == model.spent
        scorer.word_internal(POSITIONS, TOKENS)
        assert scorer.cost == model.spent
    empty = torch.zeros(2, 0, dtype=torch.long)
    before = scorer.cost
    scorer.word_internal(POSITIONS, empty)
    assert scorer.cost == before


def test_two_points_in_two_positions_are_four_gradients() -> None:
    loss, _ = counting_loss()
    table = table_for(loss)
    scorer = Gradient(2).init(gpt2(), loss.model, table).bind(loss)
    scorer.word_initial(POSITIONS, initial_tokens(table))
    assert scorer.cost == 4 * GRADIENT_COST


def test_last_words_that_a_table_knows_cost_nothing(tmp_path: Path) -> None:
    loss, _ = counting_loss()
    scorer = WordTable(tmp_path).init(gpt2(), loss.model, table_for(loss)).bind(loss)
    scorer.word_initial(POSITIONS, initial_tokens(table_for(loss)))
    assert scorer.cost == 0
    scorer.word_internal(POSITIONS, TOKENS)
    once = scorer.cost
    assert 0 < once <= TOKENS.numel()
    scorer.word_internal(POSITIONS, TOKENS)
    assert scorer.cost == once
