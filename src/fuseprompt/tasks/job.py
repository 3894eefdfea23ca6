"""What the jobs share: a bad item that costs one record, and the search of the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.search.method import Method
from fuseprompt.search.minimize import OnStep, Result, iterate
from fuseprompt.tasks.settings import RunSettings

#: Items searched together.
GROUP_SIZE: Final = 4


@final
@dataclass(frozen=True)
class Failure:
    """An item that got no result, and why, in a sentence."""

    item: str
    error: str


def search(
    objective: Objective,
    method: Method[Any] | Sequence[Method[Any]],
    work: Sequence[Problem | Failure],
    settings: RunSettings,
    on_step: OnStep | None = None,
) -> Iterator[Result | Failure]:
    """Yield the result of each problem and the failures between them, as groups finish."""
    results = iterate(
        objective,
        method,
        [one for one in work if isinstance(one, Problem)],
        seed=settings.seed,
        group_size=GROUP_SIZE,
        time_limit=None if settings.time_limit is None else settings.time_limit * GROUP_SIZE,
        on_step=on_step,
    )
    for one in work:
        yield one if isinstance(one, Failure) else next(results)
