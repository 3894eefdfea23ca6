"""Tables and plot of the search budget, from its journal.

Differences are paired: both arms on the same problem. Intervals are 95 % bootstrap intervals over
problems; the three seeds of the random arm are averaged first. This file searches nothing. Read
next: benchmarks/results/search-budget.md.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.bootstrap import interval
from benchmarks.journal import Journal
from benchmarks.search_budget.arms import EVERYTHING, LM

TABLE = "table"
BEGIN, END = "<!-- made by search_budget.py: begin -->", "<!-- made by search_budget.py: end -->"
SHIPPED_BEGIN, SHIPPED_END = (mark.replace("made", "shipped, made") for mark in (BEGIN, END))
_DRAWS = 1_000
#: Fewer problems say nothing about their spread; such rows are left out.
_FEWEST = 5
#: Largest budget, run for LM top-k alone.
_MOST = 512
#: Decision of the page: arms that are drawn, with their colours.
COLOURS = {
    LM: "#555555",
    "random": "#bbbbbb",
    "turn taking": "#8c564b",
    TABLE: "#1f77b4",
    "paper's map": "#9467bd",
    "direct": "#ff7f0e",
    "direct + table": "#2ca02c",
    "direct-4 + table": "#17becf",
    "surrogate": "#d62728",
    "anchored": "#e377c2",
    "anchored words": "#000000",
}


@dataclass(frozen=True)
class Outcome:
    """What one arm reached on one problem.

    Attributes:
        kind: Kind of problem.
        loss: Total loss of the text that the search returned.
        open: Loss of the best open text after each step.
        terms: Fluency and the term of the returned text.
        cost: Forward equivalents of the whole search, for one open text and step.
        seconds: CPU seconds of the search.
    """

    kind: str
    loss: float
    open: tuple[float, ...]
    terms: tuple[float, float]
    cost: float
    seconds: float


Results = Mapping[tuple[str, int], Mapping[str, Outcome]]


def read(journal: Journal) -> Results:
    """Return outcomes by arm and budget, and then by problem; seeds of an arm are averaged."""
    found: dict[tuple[str, int], dict[str, list[Outcome]]] = {}
    for row in journal.rows.values():
        arm = row["arm"].partition("/")[0]
        by_problem = found.setdefault((arm, row["budget"]), {})
        by_problem.setdefault(row["problem"], []).append(_outcome(row))
    return {
        key: {problem: _average(seeds) for problem, seeds in by_problem.items()}
        for key, by_problem in found.items()
    }


def _outcome(row: Mapping[str, Any]) -> Outcome:
    beams = 1 if row["arm"] == "everything" else 2
    fluency, term = row["terms"].values()
    # The first step has one open text, all others `beams`.
    slots = 1 + beams * (len(row["open"]) - 1)
    seconds = row["seconds"]
    # The first step also fills what is kept for the whole search; it counts as an average one.
    later = seconds[-1] - seconds[0] if len(seconds) > 1 else seconds[-1]
    whole = later * len(seconds) / max(len(seconds) - 1, 1)
    return Outcome(
        row["kind"],
        row["loss"],
        tuple(row["open"]),
        (fluency, term),
        row["cost"][-1] / slots,
        whole,
    )


def _average(seeds: Sequence[Outcome]) -> Outcome:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return Outcome(
        seeds[0].kind,
        mean([s.loss for s in seeds]),
        tuple(mean(column) for column in zip(*(s.open for s in seeds), strict=True)),
        (mean([s.terms[0] for s in seeds]), mean([s.terms[1] for s in seeds])),
        mean([s.cost for s in seeds]),
        mean([s.seconds for s in seeds]),
    )


def differences(
    results: Results,
    arm: tuple[str, int],
    base: tuple[str, int],
    measure: Callable[[Outcome], float],
    *,
    kind: str | None = None,
) -> list[float]:
    """Return arm minus base on the problems that both have."""
    ours, theirs = results.get(arm, {}), results.get(base, {})
    return [
        measure(ours[p]) - measure(theirs[p])
        for p in ours
        if p in theirs and kind in (None, ours[p].kind)
    ]


def equal_budget(
    results: Results, arm: tuple[str, int], measure: Callable[[Outcome], float]
) -> tuple[float, float, float] | None:
    """Return the budget that LM top-k needs for an arm's mean, with its interval.

    Interpolated on log cost between the budgets that were run; infinite beyond the largest, 0
    below the smallest. None without problems that all of them have.
    """
    budgets = sorted(b for name, b in results if name == LM)
    ours = results.get(arm, {})
    shared = [p for p in ours if all(p in results[LM, b] for b in budgets)]
    if len(budgets) < 2 or not shared:
        return None
    target = torch.tensor([measure(ours[p]) for p in shared], dtype=torch.float64)
    curve = torch.tensor(
        [[measure(results[LM, b][p]) for p in shared] for b in budgets], dtype=torch.float64
    )
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, len(shared), (_DRAWS, len(shared)), generator=generator)
    needed = torch.tensor(
        [
            crossing(budgets, curve[:, row].mean(1).tolist(), float(target[row].mean()))
            for row in rows
        ]
    )
    needed = needed.sort().values
    at = crossing(budgets, curve.mean(1).tolist(), float(target.mean()))
    return at, float(needed[int(0.025 * len(needed))]), float(needed[int(0.975 * len(needed))])


def crossing(budgets: Sequence[int], losses: Sequence[float], target: float) -> float:
    """Return the smallest budget at which a curve reaches a loss, interpolated on log cost."""
    if losses[0] <= target:
        return 0.0
    pairs = list(zip(budgets, losses, strict=True))
    for (left, above), (right, below) in itertools.pairwise(pairs):
        if below <= target < above:
            share = (above - target) / (above - below)
            return math.exp(math.log(left) + share * (math.log(right) - math.log(left)))
    return math.inf


def write(journal: Journal, page: Path) -> None:
    """Write the tables between the marks of a page, and the plot beside it."""
    results = {key: found for key, found in read(journal).items() if len(found) >= _FEWEST}
    tables = "\n\n".join(
        [
            "### At equal cost\n\n" + _cost_table(results),
            "### By kind of problem, budget 64\n\n" + _kind_table(results),
            "### What LM top-k needs\n\n" + _needed_table(results),
            "### After each step, budget 64\n\n" + _step_table(results),
            "### Scoring everything\n\n" + _everything_table(results),
        ]
    )
    _put(tables, page, BEGIN, END)
    plot(results, page.with_suffix(".png"))


def write_shipped(journal: Journal, page: Path) -> None:
    """Write the table of the tones as captions have them between its marks of a page."""
    _put(_cost_table(read(journal)), page, SHIPPED_BEGIN, SHIPPED_END)


def _put(tables: str, page: Path, begin: str, end: str) -> None:
    text = page.read_text("utf-8") if page.exists() else f"{begin}\n{end}\n"
    before, _, rest = text.partition(begin)
    page.write_text(f"{before}{begin}\n\n{tables}\n\n{end}{rest.partition(end)[2]}", "utf-8")


def _arms(results: Results) -> list[str]:
    return list(dict.fromkeys(arm for arm, budget in results if budget != EVERYTHING))


def _show(values: Sequence[float], *, digits: int = 2) -> str:
    if len(values) < 2:
        return "-"
    mean, low, high = (f"{v:+.{digits}f}" for v in (fmean(values), *interval(values)))
    mark = "**" if float(low) * float(high) > 0 else ""
    return f"{mark}{mean}{mark} [{low}, {high}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cost_table(results: Results) -> str:
    names = ("loss - LM top-k", "- table", "open - LM top-k", "- table")
    head = ("budget", "arm", "problems", "loss", *names, "cost", "CPU s")
    rows = []
    for budget in sorted({b for _, b in results if b != EVERYTHING}):
        for arm in _arms(results):
            found = list(results.get((arm, budget), {}).values())
            if not found:
                continue
            losses, costs, seconds = (
                sum(values) / len(found)
                for values in zip(*((o.loss, o.cost, o.seconds) for o in found), strict=True)
            )
            against = [
                ""
                if arm == base
                else _show(differences(results, (arm, budget), (base, budget), by))
                for by in (_loss, _last_open)
                for base in (LM, TABLE)
            ]
            numbers = (f"{costs:.0f}", f"{seconds:.1f}")
            rows.append((str(budget), arm, str(len(found)), f"{losses:.2f}", *against, *numbers))
    return _table(head, rows)


def _loss(outcome: Outcome) -> float:
    return outcome.loss


def _last_open(outcome: Outcome) -> float:
    return outcome.open[-1]


def _kind_table(results: Results) -> str:
    kinds = ("image", "similarity", "sentiment")
    rows = []
    for arm in _arms(results):
        if arm == LM:
            continue
        against = [
            _show(differences(results, (arm, 64), (LM, 64), _loss, kind=kind)) for kind in kinds
        ]
        parts = [
            _show(differences(results, (arm, 64), (LM, 64), lambda o, i=i: o.terms[i]), digits=3)
            for i in (0, 1)
        ]
        rows.append((arm, *against, *parts))
    return _table(("arm - LM top-k", *kinds, "fluency (nats)", "other term"), rows)


def _needed_table(results: Results) -> str:
    head = ["LM top-k needs, to equal"]
    head += [f"{name} at {budget}" for name in ("loss", "open") for budget in (16, 64, 256)]
    head += [f"{name} at 64 - LM top-k at {_MOST}" for name in ("loss", "open")]
    rows = []
    for arm in _arms(results):
        if arm == LM:
            continue
        shown = []
        for measure in (_loss, _last_open):
            for budget in (16, 64, 256):
                needed = equal_budget(results, (arm, budget), measure)
                shown.append("-" if needed is None else "{} [{}, {}]".format(*map(_budget, needed)))
        beyond = [
            _show(differences(results, (arm, 64), (LM, _MOST), by)) for by in (_loss, _last_open)
        ]
        rows.append((arm, *shown, *beyond))
    return _table(head, rows)


def _budget(value: float) -> str:
    if math.isinf(value):
        return f"> {_MOST}"
    return "< 16" if value == 0 else f"{value:.0f}"


def _step_table(results: Results) -> str:
    results = well_covered(results)
    arms = [arm for arm in _arms(results) if results.get((arm, 64))]
    shared = set.intersection(*(set(results[arm, 64]) for arm in arms)) if arms else set()
    rows = []
    for arm in arms:
        found = [results[arm, 64][problem] for problem in sorted(shared)]
        columns = zip(*(o.open for o in found if len(o.open) == 8), strict=True)
        rows.append((arm, *(f"{sum(c) / len(c):.2f}" for c in columns)))
    head = (f"mean of {len(shared)} problems, step", *(str(i + 1) for i in range(8)))
    return _table(head, rows)


def _everything_table(results: Results) -> str:
    keys = [k for k in results if k[1] == EVERYTHING]
    if not keys:
        return "Not run yet."
    reference = keys[0]
    rows = [
        (
            arm,
            str(budget),
            _show(differences(results, (arm, budget), reference, _loss)),
            _show(differences(results, (arm, budget), reference, _last_open)),
        )
        for budget, arm in sorted((budget, arm) for arm, budget in results)
        if budget != EVERYTHING
    ]
    return _table(("arm - everything, greedy", "budget", "loss", "open, step 8"), rows)


def well_covered(results: Results) -> Results:
    """Return the arms and budgets with at least half as many problems as the one with most."""
    most = max((len(found) for found in results.values()), default=0)
    return {key: found for key, found in results.items() if 2 * len(found) >= most}


def shared_problems(results: Results) -> set[str]:
    """Return the problems that every drawn arm has at every budget at which it was run."""
    cells = [found for (arm, _), found in results.items() if arm in COLOURS]
    return set.intersection(*(set(found) for found in cells)) if cells else set()


def plot(results: Results, file: Path) -> None:
    """Draw loss against cost and against CPU seconds, relative to LM top-k at 64.

    All points stand on the same problems, or a curve would bend where a budget has others; arms
    and budgets with few problems are left out.
    """
    from matplotlib.figure import Figure

    results = well_covered(results)
    shared = shared_problems(results)
    results = {
        key: {problem: o for problem, o in found.items() if problem in shared}
        for key, found in results.items()
    }
    figure = Figure(figsize=(11, 4.4), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2, sharey=True)
    for arm, colour in COLOURS.items():
        points = []
        for budget in sorted(b for name, b in results if name == arm):
            difference = differences(results, (arm, budget), (LM, 64), _loss)
            found = list(results[arm, budget].values())
            if len(difference) > 1:
                cost = sum(o.cost for o in found) / len(found)
                seconds = sum(o.seconds for o in found) / len(found)
                points.append((cost, seconds, fmean(difference), *interval(difference)))
        if not points:
            continue
        costs, seconds_, means, lows, highs = zip(*points, strict=True)
        for axis, x in ((left, costs), (right, seconds_)):
            axis.plot(x, means, "o-", color=colour, label=arm, markersize=5, linewidth=1.8)
            axis.vlines(x, lows, highs, color=colour, linewidth=1.2, alpha=0.55)
    left.set_xscale("log", base=2)
    left.set_xlabel("cost of a step for each open text (forward equivalents)")
    left.set_ylabel(f"final loss, minus LM top-k at 64 ({len(shared)} problems)")
    right.set_xscale("log", base=2)
    right.set_xlabel("CPU seconds of the search, one thread")
    for axis in (left, right):
        axis.axhline(0, color="black", linewidth=0.6)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_formatter("{x:g}")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    figure.savefig(file)
