"""The protocol of a search method: four pure functions of a state, and what they find."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar, final, runtime_checkable

from fuseprompt.objective.objective import BoundObjective, Evaluation
from fuseprompt.search.hypotheses import order_by_loss
from fuseprompt.text.tokenizer import Tokenizer

#: A text that does not end as a sentence is the result only where its loss is lower than that of
#: the best finished one by more than this.
ACTIVE_MARGIN: Final = 1.0


@final
@dataclass(frozen=True)
class HistoryEntry:
    """The best of one problem after a step: tokens appended so far, or edits."""

    step: int
    text: str
    loss: float  # of an active text, without its end
    finished: float | None  # loss of the best finished text
    evaluations: int  # candidates scored exactly


@final
@dataclass(frozen=True)
class Found:
    """The outcome of one problem: texts that end as a sentence, and active ones, best first.

    A method's losses of active texts may lack the end, so that the exact losses of all must decide.
    """

    finished: tuple[str, ...]
    active: tuple[str, ...]
    history: tuple[HistoryEntry, ...]

    def after(self, other: "Found") -> "Found":
        """Return this outcome with what a method before it found."""
        steps = other.history[-1].step if other.history else 0
        later = tuple(replace(entry, step=entry.step + steps) for entry in self.history)
        finished = tuple(dict.fromkeys((*self.finished, *other.finished)))
        active = tuple(dict.fromkeys((*self.active, *other.active)))
        return Found(finished, active, (*other.history, *later))

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts, finished ones first."""
        return (*self.finished, *self.active)

    def order(self, exact: Sequence[Evaluation], tokenizer: Tokenizer) -> list[int]:
        """Return the indices of the result and of the alternatives to it; ties by token ids.

        Of active texts only those count that beat every finished one by the margin.
        """
        count = len(self.finished)
        losses, violations = [e.loss for e in exact], [e.violation for e in exact]
        ended = order_by_loss(losses[:count], self.finished, tokenizer, violations[:count])
        rest = order_by_loss(losses[count:], self.active, tokenizer, violations[count:])
        active = [count + i for i in rest]
        if ended:
            least = violations[ended[0]], losses[ended[0]]
            active = [i for i in active if (violations[i], losses[i] + ACTIVE_MARGIN) < least]
        return [*active, *ended]


def check_counts(settings: Any, *names: str) -> None:
    """Refuse counts below 1."""
    for name in names:
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, was: {getattr(settings, name)}.")


class EveryStep:
    """The base of methods that take all their steps, and whose state says what it has found."""

    steps: int

    def is_done(self, state: Any) -> bool:
        """Return whether every step was taken."""
        return bool(state.num_steps == self.steps)

    def finish(self, state: Any) -> list[Found]:
        """Return the best texts of each problem from any state."""
        found: list[Found] = state.found()
        return found


#: The state of a method. It has `num_steps`, the steps taken, and `fast_path`, the share of
#: candidates whose secondary ids came from the retokenisation table.
S = TypeVar("S")


@runtime_checkable
class Method(Protocol[S]):
    """A search: pure functions of its state."""

    @property
    def steps(self) -> int:
        """Most steps."""

    def init(self, bound: BoundObjective) -> S:
        """Return the state before the first step."""

    def step(self, state: S) -> S:
        """Return the next state; the one given is unchanged."""

    def is_done(self, state: S) -> bool:
        """Return whether nothing is left to do."""

    def finish(self, state: S) -> list[Found]:
        """Return the best texts of each problem; works on any state."""
