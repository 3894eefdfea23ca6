"""The table of the search budget, from its journal.

Differences are paired: both arms on the same problem, with 95 % bootstrap intervals over problems.
This file searches nothing. Read next: benchmarks/results/search-budget.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.bootstrap import interval
from benchmarks.journal import Journal
from benchmarks.search_budget.arms import LM, TABLE
from fuseprompt.evaluation.report import markdown_table


@dataclass(frozen=True)
class Outcome:
    """What one arm reached on one problem.

    Attributes:
        loss: Total loss of the text that the search returned.
        open: Loss of the best open text after the last step.
        cost: Forward equivalents of the whole search, for one open text and step.
    """

    loss: float
    open: float
    cost: float


Results = Mapping[tuple[str, int], Mapping[str, Outcome]]
Measure = Callable[[Outcome], float]


def read(journal: Journal) -> Results:
    """Return outcomes by arm and budget, and then by problem."""
    found: dict[tuple[str, int], dict[str, Outcome]] = {}
    for row in journal.rows.values():
        found.setdefault((row["arm"], row["budget"]), {})[row["problem"]] = _outcome(row)
    return found


def _outcome(row: Mapping[str, Any]) -> Outcome:
    # The first step has one open text, all others two.
    slots = 2 * len(row["open"]) - 1
    return Outcome(row["loss"], row["open"][-1], row["cost"][-1] / slots)


def differences(
    results: Results, arm: tuple[str, int], base: tuple[str, int], measure: Measure
) -> list[float]:
    """Return arm minus base on the problems that both have."""
    ours, theirs = results.get(arm, {}), results.get(base, {})
    return [measure(ours[p]) - measure(theirs[p]) for p in ours if p in theirs]


def table(journal: Journal) -> str:
    """Return the table as Markdown."""
    results = read(journal)
    most = max(budget for _, budget in results)
    names = ("loss - none", "- word-table", f"- none at {most}", "open - none", "- word-table")
    lines = []
    for (arm, budget), found in sorted(results.items(), key=lambda pair: pair[0][1]):
        loss, cost = (fmean(f(o) for o in found.values()) for f in (_loss, _cost))
        bases = ((LM, budget), (TABLE, budget), (LM, most))
        whole = [_against(results, (arm, budget), base, _loss) for base in bases]
        parts = [_against(results, (arm, budget), base, _open) for base in bases[:2]]
        facts = (str(budget), arm, str(len(found)), f"{loss:.2f}")
        lines.append((*facts, *whole, *parts, f"{cost:.0f}"))
    return markdown_table(("budget", "arm", "problems", "loss", *names, "cost"), lines) + "\n"


def _loss(outcome: Outcome) -> float:
    return outcome.loss


def _open(outcome: Outcome) -> float:
    return outcome.open


def _cost(outcome: Outcome) -> float:
    return outcome.cost


def _against(
    results: Results, arm: tuple[str, int], base: tuple[str, int], measure: Measure
) -> str:
    """Return the mean difference with its interval, bold where it excludes 0."""
    values = [] if arm == base else differences(results, arm, base, measure)
    if len(values) < 2:
        return ""
    mean, low, high = (f"{v:+.2f}" for v in (fmean(values), *interval(values)))
    mark = "**" if float(low) * float(high) > 0 else ""
    return f"{mark}{mean}{mark} [{low}, {high}]"
