"""Who proposes the tokens that are evaluated exactly.

A `Proposer` sees beams and answers with candidates; after each exact round it is told their losses.
A *proposal setting* (`LanguageModelProposer`, `TransferProposer`) is a frozen dataclass whose
`start` gives the proposer of one search. Read next: `fuseprompt.search.autodan`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fuseprompt.objective.objective import BoundObjective
from fuseprompt.search.batch import Beams, Candidates
from fuseprompt.search.candidates import TokenClasses, choose
from fuseprompt.transfer.base import Slots, TokenScorer, Transfer
from fuseprompt.transfer.controls import NoTransfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer


@final
@dataclass(frozen=True)
class Step:
    """What a proposer may use at a step.

    Attributes:
        beams: The beams.
        log_probs: The language model's, shape (n, v).
        allows: Whether a text may be a candidate.
        number: Steps taken before this one.
    """

    beams: Beams
    log_probs: Float[Tensor, "n v"]
    allows: Callable[[str], bool]
    number: int = 0


@runtime_checkable
class Proposer(Protocol):
    """Proposes candidates and learns from their exact losses."""

    def propose(self, step: Step) -> Candidates:
        """Return candidates for all beams."""
        ...

    def observe(
        self, step: Step, candidates: Candidates, losses: Mapping[str, Float[Tensor, " c"]]
    ) -> None:
        """Learn the exact loss of each term for candidates."""
        ...


@runtime_checkable
class ProposalSetting(Protocol):
    """The setting of a proposer."""

    def start(self, bound: BoundObjective, classes: TokenClasses) -> Proposer:
        """Return the proposer of one search."""
        ...


@final
@dataclass(frozen=True)
class TransferProposer:
    """The language model's log-probabilities plus what a transfer predicts for the other terms.

    The score of a token is the total loss expected after it: its exact share of fluency, plus
    weight times predicted loss of each term. All new-word tokens are scored; of the tokens that
    lengthen the last word, the language model's best `num_continuations`.

    Attributes:
        transfer: How a term's information reaches the tokens.
        search_width: Candidates per beam that are evaluated exactly.
        num_continuations: Continuations considered per beam.
    """

    transfer: Transfer = field(default_factory=RetokenizedTransfer)
    search_width: int = 64
    num_continuations: int = 16

    def __post_init__(self) -> None:
        """Check the counts."""
        if self.search_width < 1:
            raise ValueError(f"search_width must be at least 1, was: {self.search_width}.")

    def start(self, bound: BoundObjective, classes: TokenClasses) -> Proposer:
        """Return the proposer of one search."""
        primary = bound.objective.primary
        scorers = {
            t.name: self.transfer.bind(primary, t.table, t) for t in bound.terms if t.weight > 0
        }
        return _TransferProposing(
            bound, classes, scorers, self.search_width, self.num_continuations
        )


def LanguageModelProposer(search_width: int = 64) -> TransferProposer:  # noqa: N802 - a setting
    """Return the proposer without gradient: the language model's own best tokens."""
    return TransferProposer(NoTransfer(), search_width=search_width, num_continuations=search_width)


@final
@dataclass(frozen=True)
class _TransferProposing:
    bound: BoundObjective
    classes: TokenClasses
    scorers: Mapping[str, TokenScorer]
    search_width: int
    num_continuations: int

    def propose(self, step: Step) -> Candidates:
        beams, log_probs = step.beams, step.log_probs.cpu()
        fluency = self.bound.objective.fluency
        nll = -log_probs
        count = (beams.num_chosen[:, None] + 1).clamp_min(1)
        reduced = fluency.reduce(beams.nll_sum[:, None] + nll.double(), count)
        expected = fluency.weight * reduced.float()
        words = torch.nonzero(self.classes.new_words).flatten()
        scores = torch.full_like(expected, float("inf"))
        scores[:, words] = expected[:, words]
        # A text must not begin with a blank, so an empty one takes only tokens without.
        scores[torch.tensor([not text for text in beams.texts])] = float("inf")
        open_ = self._may_continue(beams)
        blocked = torch.where(open_, log_probs, -float("inf"))
        top = torch.topk(blocked, min(self.num_continuations, blocked.shape[1]), dim=1)
        slots = Slots.append(beams.texts, beams.problems)
        lengthened = expected.gather(1, top.indices)
        for term in self.bound.terms:
            if term.name in self.scorers:
                scorer = self.scorers[term.name]
                scores[:, words] += term.weight * scorer.new_words(slots, words).cpu()
                lengthened = (
                    lengthened + term.weight * scorer.continuations(slots, top.indices).cpu()
                )
        lengthened = torch.where(
            torch.isfinite(top.values), lengthened, torch.full_like(lengthened, float("inf"))
        )
        scores.scatter_(1, top.indices, torch.minimum(lengthened, scores.gather(1, top.indices)))
        return choose(
            beams, scores, log_probs, self.classes, width=self.search_width, allows=step.allows
        )

    def _may_continue(self, beams: Beams) -> Bool[Tensor, "n v"]:
        """Return which tokens may lengthen each beam's last word: none while it is the prefix's."""
        prefixes = [self.bound.problems[p].prefix for p in beams.problems.tolist()]
        texts = zip(beams.texts, prefixes, strict=True)
        started = torch.tensor([text != prefix or not text for text, prefix in texts])
        return self.classes.continuations[None] & started[:, None]

    def observe(
        self, step: Step, candidates: Candidates, losses: Mapping[str, Float[Tensor, " c"]]
    ) -> None:
        """Learn nothing: this proposer is the same at every step."""
