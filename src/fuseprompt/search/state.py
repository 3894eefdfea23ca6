"""The state of an AutoDAN search: open texts, finished texts, and what is reported of them.

Values only; how a search moves from one state to the next is in `fuseprompt.search.autodan`, which
is to be read next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from fuseprompt.objective.objective import BoundObjective, Evaluation
from fuseprompt.search.batch import Beams
from fuseprompt.search.candidates import TokenClasses
from fuseprompt.search.proposers import Proposer


@final
@dataclass(frozen=True)
class Pooled:
    """A finished text with its exact losses.

    Attributes:
        loss: Total loss.
        text: The text.
        exact: Loss by term.
    """

    loss: float
    text: str
    exact: Evaluation = field(compare=False)


Pool = tuple[Pooled, ...]


@final
@dataclass(frozen=True)
class HistoryEntry:
    """The best of one problem after a step.

    Attributes:
        step: Tokens appended so far.
        text: Best open text.
        loss: Its loss, the end not counted.
        pooled: Loss of the best finished text, or `None`.
        evaluations: Candidates scored exactly at this step.
    """

    step: int
    text: str
    loss: float
    pooled: float | None
    evaluations: int


@final
@dataclass(frozen=True)
class Found:
    """The outcome of one problem.

    Attributes:
        finished: Texts that end as sentences, best first.
        open_text: The best text that does not, or `None`. Its price without an end says little
            beside a finished text, so that the exact losses of both must decide.
        history: The best after each step.
    """

    finished: tuple[str, ...]
    open_text: str | None
    history: tuple[HistoryEntry, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts, finished ones first."""
        return self.finished if self.open_text is None else (*self.finished, self.open_text)


@final
@dataclass(frozen=True, eq=False)
class AutoDANState:
    """The state of a search.

    Attributes:
        bound: Objective and problems.
        classes: The primary's tokens.
        proposer: Who proposes.
        beams: Open texts.
        pools: Finished texts of each problem, best first.
        histories: Best after each step, of each problem.
        left: Beams of problems that are settled: problem, loss, text.
        num_steps: Tokens appended so far.
        fast_path: Candidates whose secondary ids came from the retokenisation table (mean over the
            terms).
        num_scored: Candidates scored exactly.
    """

    bound: BoundObjective
    classes: TokenClasses
    proposer: Proposer
    beams: Beams
    pools: tuple[Pool, ...]
    histories: tuple[tuple[HistoryEntry, ...], ...]
    left: tuple[tuple[int, float, str], ...] = ()
    num_steps: int = 0
    fast_path: float = 0.0
    num_scored: int = 0

    def open_texts(self) -> list[tuple[int, float, str]]:
        """Return problem, loss and text of every beam that was not finished."""
        return [*self.left, *describe_rows(self.beams, range(len(self.beams)))]


def describe_rows(beams: Beams, rows: Sequence[int]) -> list[tuple[int, float, str]]:
    """Return problem, loss and text of some beams."""
    return [(int(beams.problems[i]), float(beams.losses[i]), beams.texts[i]) for i in rows]
