"""Who proposes the tokens that are evaluated exactly.

A `Proposer` sees beams and answers with candidates; after each exact round it is told their losses.
A *proposal setting* (`LanguageModelProposer`, `TransferProposer`) is a frozen dataclass whose
`start` gives the proposer of one search. Read next: `fuseprompt.search.autodan`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
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
        log_probs: The language model's, shape (n, v), on its device.
        allows: Whether a text may be a candidate; `None` where any may.
        number: Steps taken before this one.
        round: Exact rounds of this step before this one.
    """

    beams: Beams
    log_probs: Float[Tensor, "n v"]
    allows: Callable[[str], bool] | None
    number: int = 0
    round: int = 0


@runtime_checkable
class Proposer(Protocol):
    """Proposes candidates and learns from their exact losses."""

    @property
    def rounds(self) -> int:
        """Exact rounds of a step: `propose`, then `observe`, so many times."""
        ...

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

    def start(self, bound: BoundObjective, classes: TokenClasses) -> "TransferProposing":
        """Return the proposer of one search."""
        primary = bound.objective.primary
        scorers = {
            t.name: self.transfer.bind(primary, t.table, t) for t in bound.terms if t.weight > 0
        }
        return TransferProposing(bound, classes, scorers, self.search_width, self.num_continuations)


def LanguageModelProposer(search_width: int = 64) -> TransferProposer:  # noqa: N802 - a setting
    """Return the proposer without gradient: the language model's own best tokens."""
    return TransferProposer(NoTransfer(), search_width=search_width, num_continuations=search_width)


@final
@dataclass(frozen=True)
class Predictions:
    """What is expected of candidate tokens before any of a round is evaluated.

    All of it lies on the device of the language model's log-probabilities.

    Attributes:
        fluency: Weighted fluency after each token, exact, shape (n, v).
        words: The new-word tokens, shape (w,).
        new: Predicted loss of each term after a new word, shape (n, w) each.
        tokens: Tokens that lengthen the last word, shape (n, c).
        may: Which of them may, and survive the round trip, shape (n, c).
        lengthened: Predicted loss of each term after them, shape (n, c) each.
        opens: Which texts are empty, shape (n,): none of these begins with a blank.
    """

    fluency: Float[Tensor, "n v"]
    words: Int[Tensor, " w"]
    new: Mapping[str, Float[Tensor, "n w"]]
    tokens: Int[Tensor, "n c"]
    may: Bool[Tensor, "n c"]
    lengthened: Mapping[str, Float[Tensor, "n c"]]
    opens: Bool[Tensor, " n"]

    def total(self, weights: Mapping[str, float]) -> Float[Tensor, "n v"]:
        """Return the total loss expected after each token; infinite where it may not be appended.

        Args:
            weights: Weight of each term.
        """
        scores = torch.full_like(self.fluency, float("inf"))
        scores[:, self.words] = self.fluency[:, self.words] + sum(
            weights[name] * values for name, values in self.new.items()
        )
        # A text must not begin with a blank, so an empty one takes only tokens without.
        scores[self.opens] = float("inf")
        longer = self.fluency.gather(1, self.tokens) + sum(
            weights[name] * values for name, values in self.lengthened.items()
        )
        longer = longer.masked_fill(~self.may, float("inf"))
        scores.scatter_(1, self.tokens, torch.minimum(longer, scores.gather(1, self.tokens)))
        return scores


@final
@dataclass(frozen=True)
class TransferProposing:
    """A `TransferProposer` in one search.

    Attributes:
        bound: Objective and problems.
        classes: Tokens of the primary.
        scorers: The bound transfer of each term with a weight.
        search_width: Candidates per beam.
        num_continuations: Continuations considered per beam.
    """

    bound: BoundObjective
    classes: TokenClasses
    scorers: Mapping[str, TokenScorer]
    search_width: int
    num_continuations: int
    rounds: int = 1

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each term that is scored."""
        return {t.name: t.weight for t in self.bound.terms if t.name in self.scorers}

    def predict(self, step: Step) -> Predictions:
        """Return what the transfer expects of candidate tokens."""
        beams, log_probs = step.beams, step.log_probs
        device = log_probs.device
        fluency = self.bound.objective.fluency
        count = (beams.num_chosen[:, None] + 1).clamp_min(1).to(device)
        reduced = fluency.reduce(beams.nll_sum[:, None].to(device) - log_probs.double(), count)
        blocked = torch.where(self._may_continue(beams, device), log_probs, -float("inf"))
        top = torch.topk(blocked, min(self.num_continuations, blocked.shape[1]), dim=1)
        # Of all tokens only these leave the device: texts are made of them.
        tokens, may = top.indices.cpu(), torch.isfinite(top.values).cpu()
        rows, ranks = torch.nonzero(may, as_tuple=True)
        may[rows, ranks] = self.classes.round_trip.survives(
            beams.texts, beams.token_ids, rows, tokens[rows, ranks]
        )
        asked, words = _leave_out(tokens, may), self.classes.words
        slots = Slots.append(beams.texts, beams.problems)
        scorers = self.scorers.items()
        return Predictions(
            fluency=fluency.weight * reduced.float(),
            words=self.classes.on(device).words,
            new={name: s.new_words(slots, words).to(device) for name, s in scorers},
            tokens=top.indices,
            may=may.to(device),
            lengthened={name: s.continuations(slots, asked).to(device) for name, s in scorers},
            opens=torch.tensor([not text for text in beams.texts], device=device),
        )

    def propose(self, step: Step) -> Candidates:
        """Return the tokens with the lowest expected total loss."""
        return self.choose(step, self.predict(step).total(self.weights), self.search_width)

    def choose(self, step: Step, scores: Float[Tensor, "n v"], width: int) -> Candidates:
        """Return the best-scored tokens of each beam that survive the round trip."""
        return choose(
            step.beams,
            scores,
            step.log_probs,
            self.classes,
            width=width,
            allows=step.allows,
        )

    def _may_continue(self, beams: Beams, device: torch.device) -> Bool[Tensor, "n v"]:
        """Return which tokens may lengthen each beam's last word: none while it is the prefix's."""
        prefixes = [self.bound.problems[p].prefix for p in beams.problems.tolist()]
        texts = zip(beams.texts, prefixes, strict=True)
        started = torch.tensor([text != prefix or not text for text, prefix in texts])
        return self.classes.on(device).continuations[None] & started.to(device)[:, None]

    def observe(
        self, step: Step, candidates: Candidates, losses: Mapping[str, Float[Tensor, " c"]]
    ) -> None:
        """Learn nothing: this proposer is the same at every step."""


def _leave_out(tokens: Int[Tensor, "n c"], may: Bool[Tensor, "n c"]) -> Int[Tensor, "n c"]:
    """Return the tokens with each one that may not be appended replaced by one of its row that may.

    A transfer is then asked for nothing that cannot be a candidate.
    """
    if not may.numel():
        return tokens
    stand_in = tokens.gather(1, may.int().argmax(dim=1, keepdim=True))
    return torch.where(may, tokens, stand_in)
