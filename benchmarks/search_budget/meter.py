"""What a search spends, in forward equivalents of the secondary.

`metered` puts a meter between a search and its secondary. Every text that goes through the model
counts 1, every text with a gradient 3, whoever asks; a text whose exact loss was asked for before
in the same search counts nothing. Exact losses and the language model's answers are remembered
between the arms of a problem, which meet the same texts; that changes neither results nor costs.

This file knows no arm and no problem. Read next: `__main__.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fuseprompt.models.base import CausalModel, TextModel
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.objective.objective import BoundObjective, Evaluation
from fuseprompt.proposals.gradient import GRADIENT_COST
from fuseprompt.text.retokenize import PaddedIds

#: Distributions over the next token that are remembered, 200 kB each.
_MOST_REMEMBERED = 500

#: Exact losses of a problem's term by the ids of a text.
Scores = dict[tuple[int, ...], float]


@dataclass
class Meter:
    """What one search has spent.

    Attributes:
        cost: Forward equivalents.
        scored: Texts that were scored exactly.
    """

    cost: float = 0.0
    scored: int = 0
    _pauses: int = 0
    _asked: set[tuple[int, ...]] = field(default_factory=set)

    def count_rows(self, rows: int, *, with_gradient: bool) -> None:
        """Count texts that go through the model."""
        if not self._pauses:
            self.cost += rows * (GRADIENT_COST if with_gradient else 1.0)

    def count_scores(self, texts: Sequence[tuple[int, ...]]) -> None:
        """Count texts whose exact loss is asked for, each the first time only."""
        new = set() if self._pauses else set(texts) - self._asked
        self._asked |= new
        self.cost += len(new)
        self.scored += len(new)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing of what happens inside."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1


class MeteredModel:
    """A secondary that counts what goes through it; otherwise the model itself."""

    def __init__(self, model: TextModel) -> None:
        """Put a meter, which each search sets anew, before the model."""
        self._model = model
        self.meter = Meter()

    def __getattr__(self, name: str) -> Any:
        """Return what the model has."""
        return getattr(self._model, name)

    def outputs(self, token_ids: PaddedIds, *, embeds: Tensor | None = None) -> Tensor:
        """Return the model's outputs."""
        self.meter.count_rows(len(token_ids), with_gradient=embeds is not None)
        return self._model.outputs(token_ids, embeds=embeds)


@dataclass(frozen=True, eq=False)
class MeteredTerm(BoundTerm):
    """A bound term with a meter and the scores that other searches of the problem found."""

    meter: Meter
    scores: Scores

    @cached_property
    def model(self) -> Any:  # type: ignore[override]
        """The secondary, metered; what a proposal keeps for a pair of models is not charged."""
        return MeteredModel(self.term.model)

    def score(
        self, texts: Sequence[str], rows: Tensor, tokens: Tensor, problems: Tensor
    ) -> tuple[Tensor, float]:
        """Return what `BoundTerm.score` returns."""
        ids, share = self.table.extend(texts, rows, tokens)
        keys = [tuple(row) for row in ids.to_lists()]
        self.meter.count_scores(keys)
        # Equal texts share a key; the first of each is computed.
        first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self.scores}
        if first:
            which = torch.tensor(sorted(first.values()))
            with self.meter.paused():
                exact, _ = super().score(texts, rows[which], tokens[which], problems[which])
            self.scores.update(zip([keys[i] for i in which.tolist()], exact.tolist(), strict=True))
        return torch.tensor([self.scores[key] for key in keys], dtype=torch.float32), share


@dataclass(frozen=True, eq=False)
class MeteredObjective(BoundObjective):
    """A bound objective whose reports of finished texts are free, for every arm alike."""

    meter: Meter

    def evaluate(
        self,
        texts: Sequence[str],
        problems: Sequence[int],
        *,
        fluency: Sequence[float] | None = None,
    ) -> list[Evaluation]:
        """Return the exact losses of whole texts."""
        with self.meter.paused():
            return super().evaluate(texts, problems, fluency=fluency)


class RememberingLM:
    """The language model, which answers the same question about the same text only once."""

    #: A cache of beginnings would answer otherwise, to rounding, than a text read whole.
    can_continue = False

    def __init__(self, model: CausalModel) -> None:
        """Put a memory before the model."""
        self.model = model
        self._next: dict[tuple[int, ...], Tensor] = {}
        self._nll: dict[tuple[int, ...], Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        """Return what the model has."""
        return getattr(self.model, name)

    def next_log_probs(self, token_ids: Tensor) -> Tensor:
        """Return what the model returns, row by row."""
        keys = [tuple(row) for row in token_ids.tolist()]
        if len(self._next) > _MOST_REMEMBERED:
            self._next.clear()
        new = [i for i, key in enumerate(keys) if key not in self._next]
        if new:
            rows = self.model.next_log_probs(token_ids[new])
            self._next.update(zip([keys[i] for i in new], rows, strict=True))
        return torch.stack([self._next[key] for key in keys])

    def nll(self, token_ids: Sequence[Sequence[int]], num_given: Sequence[int]) -> list[Tensor]:
        """Return what the model returns, row by row."""
        keys = [(given, *ids) for given, ids in zip(num_given, token_ids, strict=True)]
        new = [i for i, key in enumerate(keys) if key not in self._nll]
        if new:
            rows = self.model.nll([token_ids[i] for i in new], [num_given[i] for i in new])
            self._nll.update(zip([keys[i] for i in new], rows, strict=True))
        return [self._nll[key] for key in keys]


def metered(bound: BoundObjective, meter: Meter, scores: Scores) -> MeteredObjective:
    """Put a meter, and what is known of a problem's texts, between a search and its secondary.

    Args:
        bound: Objective with the targets of one problem, and one term beside fluency.
        meter: Counts.
        scores: Exact losses of this problem's texts; filled.

    Returns:
        The objective with the same losses.
    """
    assert len(bound.problems) == len(bound.terms) == 1, "scores are of one problem and term"
    (term,) = bound.terms
    one = MeteredTerm(term.term, term.targets, term.seeds, term.table, meter, scores)
    one.model.meter = meter
    whole = {f.name: getattr(bound, f.name) for f in fields(bound)}
    return MeteredObjective(**{**whole, "terms": (one,)}, meter=meter)
