"""Several exact rounds a step: what the first round found decides where the next one looks.

A transfer predicts every word's loss, the best-scored are evaluated, and a surrogate
(`fuseprompt.transfer.surrogate`) corrects the predictions by their exact losses before the next
round. Nothing is kept from step to step. Read next: `fuseprompt.search.autodan`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.search.batch import Candidates
from fuseprompt.search.candidates import TokenClasses
from fuseprompt.search.proposers import (
    Predictions,
    Proposer,
    Step,
    TransferProposer,
    TransferProposing,
)
from fuseprompt.transfer.base import Transfer
from fuseprompt.transfer.surrogate import CONSIDERED, Surrogate, word_directions
from fuseprompt.transfer.word_table import WordTable


@final
@dataclass(frozen=True)
class SurrogateProposer:
    """A transfer whose predictions are corrected by exact losses between the rounds of a step.

    Attributes:
        transfer: Predicts every word before the first round.
        search_width: Candidates per beam that are evaluated exactly, all rounds together.
        rounds: Exact rounds per step.
        num_continuations: Continuations considered per beam.
        surrogate: What a loss says of other words.
        words: The table whose vectors say which words are alike.
    """

    transfer: Transfer = field(default_factory=WordTable)
    search_width: int = 64
    rounds: int = 4
    num_continuations: int = 16
    surrogate: Surrogate = field(default_factory=Surrogate)
    words: WordTable = field(default_factory=WordTable)

    def __post_init__(self) -> None:
        """Check the counts.

        Raises:
            ValueError: If a count is not positive.
        """
        if min(self.search_width, self.rounds) < 1:
            raise ValueError(
                "search_width and rounds must be at least 1, were: "
                f"{self.search_width} and {self.rounds}."
            )

    def start(self, bound: BoundObjective, classes: TokenClasses) -> Proposer:
        """Return the proposer of one search."""
        first = TransferProposer(self.transfer, self.search_width, self.num_continuations)
        proposing = first.start(bound, classes)
        directions = {
            t.name: _directions(self.words, t, classes.words)
            for t in bound.terms
            if t.name in proposing.scorers
        }
        rounds = min(self.rounds, self.search_width)
        return _SurrogateProposing(proposing, self.surrogate, directions, rounds)


def _directions(
    words: WordTable, term: BoundTerm, tokens: Int[Tensor, " w"]
) -> Float[Tensor, "w o"]:
    """Return a unit vector for each token that begins a word, made once for a table and a model."""

    def make() -> Tensor:
        vectors, row_of = words.vectors(term.table, term)
        # A token without a row is never proposed; any vector will do.
        return word_directions(vectors.float())[row_of[tokens].clamp_min(0)]

    return term.table.memo.recall("word directions", (term.model,), make)


@final
@dataclass(eq=False)
class _SurrogateProposing:
    proposing: TransferProposing
    surrogate: Surrogate
    directions: Mapping[str, Float[Tensor, "w o"]]
    rounds: int
    _now: "_Round | None" = None

    @cached_property
    def _place(self) -> list[int]:
        """Where each token stands among those that begin a word; -1 for all others."""
        classes = self.proposing.classes
        place = torch.full((classes.vocab_size,), -1)
        place[classes.words] = torch.arange(len(classes.words))
        return place.tolist()

    def propose(self, step: Step) -> Candidates:
        if step.round == 0 or self._now is None:
            predictions = self.proposing.predict(step)
            scores = predictions.total(self.proposing.weights)
            self._now = _Round(predictions, scores, [{} for _ in range(len(step.beams))])
        else:
            scores = self._correct(self._now)
        asked = [list(known) for known in self._now.exact]
        for row, tokens in enumerate(asked):
            scores[row, torch.tensor(tokens, dtype=torch.long)] = float("inf")
        width = self.proposing.search_width
        done = width * step.round // self.rounds
        return self.proposing.choose(step, scores, width * (step.round + 1) // self.rounds - done)

    def observe(
        self, step: Step, candidates: Candidates, losses: Mapping[str, Float[Tensor, " c"]]
    ) -> None:
        """Keep the exact losses of a round."""
        assert self._now is not None, "a round is observed after it was proposed"
        values = {name: losses[name].tolist() for name in self.directions}
        for i, (row, token) in enumerate(
            zip(candidates.rows.tolist(), candidates.tokens.tolist(), strict=True)
        ):
            self._now.exact[row][token] = {name: v[i] for name, v in values.items()}

    def _correct(self, now: "_Round") -> Float[Tensor, "n v"]:
        """Return total losses expected in the light of all exact ones of this step."""
        predictions = now.predictions
        words, device = predictions.words, predictions.words.device
        corrected = {name: values.clone() for name, values in predictions.new.items()}
        place = self._place
        for row, exact in enumerate(now.exact):
            tokens = [
                t for t, v in exact.items() if place[t] >= 0 and all(map(_finite, v.values()))
            ]
            if not tokens:
                continue
            asked = torch.tensor([place[t] for t in tokens], device=device)
            few = torch.topk(
                now.scores[row, words], min(CONSIDERED, len(words)), largest=False
            ).indices
            few = torch.unique(torch.cat([few, asked]))  # sorted
            for name, values in corrected.items():
                values[row, few] = self.surrogate.correct(
                    predictions.new[name][row, few],
                    self.directions[name].to(device)[few],
                    torch.searchsorted(few, asked),
                    torch.tensor([exact[t][name] for t in tokens], device=device),
                )
        return replace(predictions, new=corrected).total(self.proposing.weights)


@final
@dataclass(frozen=True, eq=False)
class _Round:
    """What is known within a step.

    Attributes:
        predictions: Of the transfer.
        scores: Total losses that it expects, shape (n, v).
        exact: For each beam, exact losses by term of the tokens evaluated so far.
    """

    predictions: Predictions
    scores: Float[Tensor, "n v"]
    exact: list[dict[int, dict[str, float]]]


def _finite(value: float) -> bool:
    return value < float("inf")
