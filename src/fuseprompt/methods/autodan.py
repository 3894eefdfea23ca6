"""AutoDAN: a text grows by one token a step, each token proposed cheaply and scored exactly.

Zhu et al. (2023); Williams & Kolter (2024, section 4.2). A text that ends as a sentence leaves the
beam, so that results do not break off. In place of the beam there may be a queue of hypotheses of
any length (uniform cost, in the paper's code); what one costs is the loss of its text.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.objective.objective import BoundObjective
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Proposal
from fuseprompt.search.beginnings import begin
from fuseprompt.search.candidates import Proposer, keep_best, select_best
from fuseprompt.search.checkpoint import REBUILT
from fuseprompt.search.hypotheses import Finished, Hypotheses, extend, join, order_by_loss
from fuseprompt.search.method import Found, HistoryEntry, check_counts
from fuseprompt.search.scoring import exact_losses, finish_sentences, next_log_probs

#: Added to the loss of a candidate per unmet demand of a constraint, growing to this at the last
#: step.
_DEMAND_PENALTY: Final = 20.0


@final
@dataclass(frozen=True)
class AutoDAN:
    """Settings of the search; the defaults were measured for the offline models.

    Attributes:
        steps: Most tokens that are appended, closing punctuation included.
        max_end_nats: Highest price of a full stop (or ! or ?) that finishes a text, in nats:
            right ones cost 1-3 nats, those glued to broken sentences 7-14.
        ending_nats: Lowest price of full stop and end of text together. An active text is compared
            with finished ones as if it ended here at this price: cheap ends otherwise favour the
            first finished text, and captions stay three words long.
        patience: A problem is done when its best finished text beats its active ones, and did so
            after each of this many steps before. With a sentiment, the first words often cost much
            until the next ones explain them.
        num_waiting: Hypotheses of each problem that wait beside the beam. With some the search is
            by uniform cost: the best of all are extended next, whatever their lengths, so that a
            text of n tokens may take more than n steps.
        num_finished: Finished texts kept per problem.
        num_word_internal: The language model's best word-internal tokens per hypothesis.
        ascii_only: Whether only ASCII tokens are proposed, as in the literature.
    """

    steps: int = 12
    proposal: Proposal = field(default_factory=AdditiveWordTable)
    beam_width: int = 8
    search_width: int = 16
    max_end_nats: float = 4.0
    ending_nats: float = 2.0
    patience: int = 2
    num_waiting: int = 0
    num_finished: int = 10
    num_word_internal: int = 16
    ascii_only: bool = True

    def __post_init__(self) -> None:
        """Check the counts."""
        check_counts(self, "steps", "beam_width", "search_width")

    def init(self, bound: BoundObjective) -> "AutoDANState":
        """Return the state before the first step: the beginning of each text as a hypothesis."""
        active = begin(bound)
        proposer = Proposer.start(
            bound,
            self.proposal,
            num_word_internal=self.num_word_internal,
            ascii_only=self.ascii_only,
        )
        nothing: tuple[tuple[()], ...] = ((),) * len(bound.problems)
        return AutoDANState(bound, proposer, active, active[[]], nothing, nothing)

    def step(self, state: "AutoDANState") -> "AutoDANState":
        """Return the state after one more token; what ends as a sentence is finished first."""
        bound, active = state.bound, state.active
        log_probs = next_log_probs(bound, active)
        finished = finish_sentences(
            bound,
            active,
            log_probs,
            state.proposer.classes,
            state.finished,
            max_nats=self.max_end_nats,
        )
        best = tuple(tuple(each[: self.num_finished]) for each in finished)
        state = replace(state, finished=best)
        rows = self._growing_rows(state)
        if not rows:
            return state.leave(range(len(active)))
        growing, log_probs = active[rows], log_probs[rows]
        candidates = state.proposer.propose(growing, log_probs, width=self.search_width)
        tokenizer = state.proposer.classes.tokenizer
        if not len(candidates):
            return state.leave(range(len(active)))
        uncounted = growing.num_chosen[candidates.rows] < 0
        candidates = replace(candidates, nll=candidates.nll.masked_fill(uncounted, 0.0))
        losses, share = exact_losses(bound, growing, candidates)
        problems = growing.problems[candidates.rows]
        demand = self._demand(bound, candidates.texts, problems, state.num_steps)
        count = self.beam_width + self.num_waiting
        chosen = keep_best(growing, candidates, losses + demand, count, tokenizer)
        grown, waiting = extend(growing, candidates, chosen, losses), state.waiting
        if self.num_waiting:
            grown, waiting = self._queue(state, grown, set(growing.problems.tolist()))
        # A problem whose hypotheses can no longer grow keeps them as they are.
        going_on = set(grown.problems.tolist())
        stopped = set(range(len(active))) - set(rows)
        left = [
            i for i, p in enumerate(active.problems.tolist()) if i in stopped or p not in going_on
        ]
        return replace(
            state.leave(left),
            active=grown,
            waiting=waiting,
            histories=_log(state, grown, problems),
            num_steps=state.num_steps + 1,
            num_fast=state.num_fast + share * len(candidates),
            num_scored=state.num_scored + len(candidates),
        )

    def is_done(self, state: "AutoDANState") -> bool:
        """Return whether nothing is left to extend, or every token was used."""
        return len(state.active) == 0 or state.num_steps == self.steps

    def finish(self, state: "AutoDANState") -> list[Found]:
        """Return the best texts of each problem from any state: finished ones and an active one."""
        # The active one meets all constraints, unless nothing is finished.
        found = []
        tokenizer = state.proposer.classes.tokenizer
        for problem, finished in enumerate(state.finished):
            losses = {text: loss for p, loss, text in state.unfinished() if p == problem}
            complete = [text for text in losses if state.bound.is_complete(text, problem)]
            texts = complete or ([] if finished else list(losses))
            order = order_by_loss([losses[t] for t in texts], texts, tokenizer)
            active = tuple(texts[i] for i in order[:1])
            if not (active or finished):
                active = (state.bound.problems[problem].prefix,)
            ended = tuple(entry.text for entry in finished)
            found.append(Found(ended, active, state.histories[problem]))
        return found

    def _growing_rows(self, state: "AutoDANState") -> list[int]:
        """Return the active hypotheses of problems that are not done, where they have room."""
        active, term = state.active, state.bound.objective.fluency
        chosen = active.num_chosen.clamp_min(1)
        fluency = term.reduce(active.nll_sum, chosen)
        ended = term.reduce(active.nll_sum + self.ending_nats, chosen + 2)
        hopeful = active.losses.double() + term.weight * (torch.minimum(ended, fluency) - fluency)
        done = {
            p
            for p in set(active.problems.tolist())
            if state.finished[p]
            and state.finished[p][0].loss < float(hopeful[active.problems == p].min())
            and has_waited(state.histories[p], self.patience)
        }
        limit = state.bound.objective.primary.max_length
        reserved = [state.bound.reserved(p) for p in active.problems.tolist()]
        fits = (active.token_ids.lengths + torch.tensor(reserved) + 1 < limit).tolist()
        return [i for i, p in enumerate(active.problems.tolist()) if p not in done and fits[i]]

    def _queue(
        self, state: "AutoDANState", grown: Hypotheses, going: Set[int]
    ) -> tuple[Hypotheses, Hypotheses]:
        """Return the best of what grew and of what waited, and what waits for its turn."""
        waited = [i for i, p in enumerate(state.waiting.problems.tolist()) if p in going]
        every = join(grown, state.waiting[waited])
        demand = self._demand(state.bound, every.texts, every.problems, state.num_steps)
        costs, alike = every.losses + demand, torch.zeros(len(every), dtype=torch.long)
        count = self.beam_width + self.num_waiting
        best = select_best(costs, every.problems, alike, self.beam_width).tolist()
        kept = select_best(costs, every.problems, alike, count).tolist()
        return every[best], every[[i for i in kept if i not in set(best)]]

    def _demand(
        self, bound: BoundObjective, texts: Sequence[str], problems: Int[Tensor, " c"], steps: int
    ) -> Float[Tensor, " c"]:
        """Return the penalty of unmet demands; it grows, so that they are met before the end."""
        if not bound.objective.constraints:
            return torch.zeros(len(texts))
        pairs = zip(texts, problems.tolist(), strict=True)
        missing = torch.tensor([float(bound.missing(text, problem)) for text, problem in pairs])
        return missing * _DEMAND_PENALTY * (steps + 1) / self.steps


@final
@dataclass(frozen=True, eq=False)
class AutoDANState:
    """The state of a search."""

    bound: BoundObjective = field(metadata=REBUILT)
    proposer: Proposer = field(metadata=REBUILT)
    active: Hypotheses
    waiting: Hypotheses  # by uniform cost
    finished: tuple[tuple[Finished, ...], ...]  # of each problem, best first
    histories: tuple[tuple[HistoryEntry, ...], ...]  # of each problem
    left: tuple[tuple[int, float, str], ...] = ()  # problem, loss, text; no longer grow
    num_steps: int = 0
    num_fast: float = 0.0  # candidates whose secondary ids came from tables, mean over the terms
    num_scored: int = 0

    @property
    def fast_path(self) -> float:
        """Share of candidates whose secondary ids came from the retokenisation table."""
        return self.num_fast / self.num_scored if self.num_scored else 1.0

    def unfinished(self) -> list[tuple[int, float, str]]:
        """Return problem, loss and text of every hypothesis that was not finished."""
        active = self.active
        rows = zip(active.problems.tolist(), active.losses.tolist(), active.texts, strict=True)
        return [*self.left, *rows]

    def leave(self, rows: Sequence[int]) -> "AutoDANState":
        """Return the state in which some hypotheses no longer grow, and the others are dropped."""
        rest = replace(self, active=self.active[rows])
        return replace(rest, active=self.active[[]], left=tuple(rest.unfinished()))


def has_waited(history: Sequence[HistoryEntry], patience: int) -> bool:
    """Return whether the finished text was the better one after each of the last steps."""
    return len(history) >= patience and all(
        entry.finished is not None and entry.finished < entry.loss
        for entry in history[len(history) - patience :]
    )


def _log(
    state: AutoDANState, grown: Hypotheses, problems: Int[Tensor, " c"]
) -> tuple[tuple[HistoryEntry, ...], ...]:
    """Return the histories with an entry for each problem that was extended."""
    histories = list(state.histories)
    best = select_best(grown.losses, grown.problems, torch.zeros(len(grown), dtype=torch.long), 1)
    for i in best.tolist():
        problem = int(grown.problems[i])
        finished = state.finished[problem]
        entry = HistoryEntry(
            state.num_steps + 1,
            grown.texts[i],
            float(grown.losses[i]),
            finished[0].loss if finished else None,
            int((problems == problem).sum()),
        )
        histories[problem] = (*histories[problem], entry)
    return tuple(histories)
