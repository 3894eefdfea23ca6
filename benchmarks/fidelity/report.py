"""Rows, tables and the plot of the fidelity study.

Tables are Markdown, so that a page of the results is what the command prints.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.fidelity.rankers import Ranker
from benchmarks.fidelity.statistics import Estimate
from benchmarks.fidelity.study import BUDGETS, Group, Measurement, compare, pool
from benchmarks.fidelity.study import summarise as summarise_contexts
from fuseprompt.errors import FuseError
from fuseprompt.methods.autodan import AutoDAN

PRIMARY: Final = "offline:lm"

#: Columns of a table: heading, figure, digits.
COLUMNS: Final = (
    ("rho", "rho", 2),
    ("10@16", "recall 10@16", 2),
    ("10@64", "recall 10@64", 2),
    ("10@512", "recall 10@512", 2),
    ("regret 16", "regret 16", 3),
    ("10 at cost 128", "recall 10@cost128", 2),
    ("cost share", "cost_share", 4),
)

#: What the others are compared with.
RIVALS: Final = ("none", "word-table", "word-table-16", "gradient-16", "additive")

#: What a good proposal should reach.
GOALS: Final[Mapping[str, Mapping[str, float]]] = {
    "append new word": {
        "rho": 0.85,
        "recall 10@64": 0.95,
        "recall 10@512": 0.99,
        "regret 16": 0.02,
    },
    "append continuation": {"recall 10@64": 0.80, "recall 10@512": 0.95, "regret 16": 0.02},
}


def as_json(measured: Sequence[Measurement], rankers: Sequence[Ranker]) -> list[str]:
    """Return one JSON line per cell and ranker; fewer than three contexts have null bounds."""
    known = {r.name: r for r in rankers}
    default = AutoDAN().proposal.name
    lines = []
    for (group, name), contexts in pool(measured).items():
        found = summarise_contexts(contexts)
        row: dict[str, Any] = {
            "primary": PRIMARY,
            "secondary": group.secondary,
            "objective": group.objective,
            "edit": group.edit,
            "transfer": name,
            "linearisation": known[name].linearisation,
            "default": name == default,
            "contexts": len(contexts),
            "rho": _plain(found["rho"]),
            "recall": _by_budget(found, "recall "),
            "regret": _by_budget(found, "regret "),
            "cost_share": _plain(found["cost_share"]),
        }
        lines.append(json.dumps(row))
    return lines


def page(measured: Sequence[Measurement], *, breakdown: bool) -> str:
    """Return all tables, with `breakdown` those by words and by pieces too."""
    parts = [
        tables(measured),
        "## Goals",
        goals(measured),
        "## Paired differences",
        paired(measured, figures=("rho", "recall 10@cost128", "recall 10@cost1024")),
    ]
    if breakdown:
        parts += ["## By words of the context", short_tables(measured, by="words")]
        parts += ["## By pieces of the candidate", short_tables(measured, by="pieces")]
    return "\n\n".join(parts)


def _by_budget(found: Mapping[str, Estimate], kind: str) -> dict[str, dict[str, float | None]]:
    return {n.removeprefix(kind): _plain(e) for n, e in found.items() if n.startswith(kind)}


def _plain(estimate: Estimate) -> dict[str, float | None]:
    values = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {k: None if math.isnan(v) else round(v, 5) for k, v in values.items()}


def tables(measured: Sequence[Measurement], *, by: str = "") -> str:
    """Return a table for each cell: values and, in brackets, 95 % intervals over contexts."""
    pooled = pool(measured, by=by)
    parts = []
    for group in dict.fromkeys(group for group, _ in pooled):
        rows = {name: contexts for (g, name), contexts in pooled.items() if g == group}
        count = max(len(c) for c in rows.values())
        counted = "1 context." if count == 1 else f"{count} contexts."
        lines = [f"### {title(group)}", "", counted, "", _heading(), _rule()]
        for name, contexts in rows.items():
            found = summarise_contexts(contexts)
            cells = [_cell(found[figure], digits) for _, figure, digits in COLUMNS]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def title(group: Group) -> str:
    """Return the heading of a cell."""
    text = f"{group.secondary}, {group.objective}, {group.edit}"
    if group.words is not None:
        text += f", {group.words} words"
    if group.pieces is not None:
        text += f", {_column(group.pieces, 'pieces')}"
    return text


def _heading() -> str:
    return "| transfer | " + " | ".join(heading for heading, _, _ in COLUMNS) + " |"


def _rule() -> str:
    return "|---|" + "---|" * len(COLUMNS)


def _cell(estimate: Estimate, digits: int) -> str:
    if math.isnan(estimate.low):
        return f"{estimate.value:.{digits}f}"
    low, high = f"{estimate.low:.{digits}f}", f"{estimate.high:.{digits}f}"
    return f"{estimate.value:.{digits}f} [{low}, {high}]"


def short_tables(measured: Sequence[Measurement], *, by: str) -> str:
    """Return tables of recall within 64 evaluations, a column for each value of `by`."""
    pooled = pool(measured, by=by)
    cells: dict[tuple[str, str, str], dict[int, dict[str, Estimate]]] = {}
    for (group, name), contexts in pooled.items():
        value = group.words if by == "words" else group.pieces
        assert value is not None
        cell = cells.setdefault((group.secondary, group.objective, group.edit), {})
        cell.setdefault(value, {})[name] = summarise_contexts(contexts)["recall 10@64"]
    parts = []
    for key, columns in cells.items():
        values = sorted(columns)
        heads = " | ".join(_column(v, by) for v in values)
        lines = [
            f"### {', '.join(key)}",
            "",
            f"| transfer | {heads} |",
            "|---|" + "---|" * len(values),
        ]
        for name in dict.fromkeys(n for column in columns.values() for n in column):
            found = [columns[v].get(name) for v in values]
            lines.append(
                f"| {name} | " + " | ".join(_cell(e, 2) if e else "" for e in found) + " |"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _column(value: int, by: str) -> str:
    if by == "words":
        return f"{value} words"
    return "1 piece" if value == 1 else f"{value} pieces" + (" and more" if value == 4 else "")


def paired(measured: Sequence[Measurement], *, figures: Sequence[str]) -> str:
    """Return paired differences of every ranker from the rivals, bold where 0 is excluded."""
    pooled = pool(measured)
    lines = []
    for figure in figures:
        lines += [f"### {figure}: difference from a rival", "", "| cell | transfer | "]
        lines[-1] += " | ".join(f"minus {r}" for r in RIVALS) + " |"
        lines.append("|---|---|" + "---|" * len(RIVALS))
        for (group, name), contexts in pooled.items():
            if name in ("none", "random"):
                continue
            differences = [
                compare(contexts, pooled[group, rival], figure)
                if rival != name and (group, rival) in pooled
                else None
                for rival in RIVALS
            ]
            texts = ["" if d is None else _signed(d) for d in differences]
            lines.append(f"| {title(group)} | {name} | " + " | ".join(texts) + " |")
        lines.append("")
    return "\n".join(lines)


def _signed(estimate: Estimate) -> str:
    if math.isnan(estimate.low):
        return f"{estimate.value:+.3f}"
    text = f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"
    return f"**{text}**" if estimate.low > 0 or estimate.high < 0 else text


def goals(measured: Sequence[Measurement]) -> str:
    """Return, for each cell with goals, the best ranker of each figure and whether it is enough."""
    pooled = pool(measured)
    lines = ["| cell | figure | goal | best | by | reached |", "|---|---|---|---|---|---|"]
    for group in dict.fromkeys(g for g, _ in pooled):
        # The goals are about the term alone.
        for figure, goal in GOALS.get(group.edit, {}).items():
            values = {
                n: summarise_contexts(c)[figure].value for (g, n), c in pooled.items() if g == group
            }
            lower = figure.startswith("regret")
            name = min(values, key=lambda n: values[n] if lower else -values[n])
            reached = values[name] <= goal if lower else values[name] >= goal
            lines.append(
                f"| {title(group)} | {figure} | {goal} | {values[name]:.3f} | {name} | "
                f"{'yes' if reached else 'no'} |"
            )
    return "\n".join(lines)


def plot(measured: Sequence[Measurement], file: Path) -> None:
    """Draw recall of the best ten against evaluations, a panel for each cell.

    Args:
        measured: Measurements.
        file: PNG, SVG or PDF, by its ending.

    Raises:
        FuseError: If matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise FuseError(
            "--plot needs matplotlib: pip install matplotlib, or leave --plot out."
        ) from None
    pooled = pool(measured)
    groups = list(dict.fromkeys(group for group, _ in pooled))
    names = list(dict.fromkeys(name for _, name in pooled))
    columns = min(3, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * rows + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    handles = {}
    for panel, group in zip(panels, groups, strict=False):
        for (other, name), contexts in pooled.items():
            if other != group:
                continue
            found = summarise_contexts(contexts)
            points = [found[f"recall 10@{n}"] for n in BUDGETS]
            values = [p.value for p in points]
            colour = f"C{names.index(name) % 10}"
            (handles[name],) = panel.plot(
                BUDGETS, values, marker="o", markersize=3, label=name, color=colour
            )
            if not any(math.isnan(p.low) for p in points):
                panel.fill_between(
                    BUDGETS,
                    [p.low for p in points],
                    [p.high for p in points],
                    color=colour,
                    alpha=0.12,
                    linewidth=0,
                )
        panel.set_xscale("log", base=2)
        panel.set_xticks(BUDGETS, [str(n) for n in BUDGETS])
        panel.set_ylim(-0.02, 1.02)
        panel.set_title(f"{group.secondary}\n{group.objective}, {group.edit}", fontsize=9)
        panel.grid(alpha=0.3)
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    figure.supxlabel("exact evaluations")
    figure.supylabel("share of the exact ten best found")
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=5, frameon=False
    )
    figure.savefig(file, dpi=110)
