"""Tables of the fidelity study, from its journal.

Means over contexts with 95 % bootstrap intervals. Read next: benchmarks/results/fidelity.md.
"""

from collections.abc import Mapping
from typing import Final

from benchmarks.bootstrap import interval
from benchmarks.fidelity.study import FIGURES, RECALL
from benchmarks.journal import Journal
from fuseprompt.evaluation.report import markdown_table

#: Pairs of rankers whose difference answers a question of the page, better one first.
PAIRS: Final = (
    ("fuse", "random maps"),
    ("gradient-16", "fuse"),
    ("word-table-16", "gradient-16"),
    ("additive", "word-table-16"),
)

#: Fewer contexts than this give no interval.
_FEWEST: Final = 3

#: A figure by cell and ranker, and then by context.
Found = Mapping[tuple[str, str], Mapping[int, float]]


def collect(journal: Journal, figure: str) -> Found:
    """Return a figure of every line by cell and ranker, and then by context."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in journal.rows.values():
        for cell, figures in row["figures"].items():
            key = f"{row['secondary'].removeprefix('offline:')}: {cell}", row["ranker"]
            found.setdefault(key, {})[row["context"]] = figures[figure]
    return found


def tables(journal: Journal) -> str:
    """Return a table of each figure, rankers in rows, and one of differences between rankers."""
    parts = []
    for figure in FIGURES:
        found = collect(journal, figure)
        cells = list(dict.fromkeys(cell for cell, _ in found))
        rows = [
            (name, *(mean_of(list(found[cell, name].values())) for cell in cells))
            for name in dict.fromkeys(name for _, name in found)
        ]
        parts.append(f"**{figure}**\n\n" + markdown_table(("ranker", *cells), rows))
    found = collect(journal, RECALL)
    rows = [
        (f"{ours} - {theirs}", *(difference(found, cell, ours, theirs) for cell in cells))
        for ours, theirs in PAIRS
    ]
    count = len({row["context"] for row in journal.rows.values()})
    parts.append(f"**{RECALL}, differences**\n\n" + markdown_table(("rankers", *cells), rows))
    return f"{count} contexts.\n\n" + "\n\n".join(parts) + "\n"


def mean_of(values: list[float], *, sign: str = "") -> str:
    """Return a mean, with its interval if there are enough values for one."""
    if len(values) < _FEWEST:
        return f"{sum(values) / len(values):{sign}.2f}"
    numbers = (sum(values) / len(values), *interval(values))
    mean, low, high = (f"{number:{sign}.2f}" for number in numbers)
    return f"{mean} [{low}, {high}]"


def difference(found: Found, cell: str, ours: str, theirs: str) -> str:
    """Return the mean difference in contexts that both have, bold if its interval excludes 0."""
    mine, other = found.get((cell, ours), {}), found.get((cell, theirs), {})
    values = [mine[context] - other[context] for context in sorted(mine) if context in other]
    if not values:
        return ""
    text = mean_of(values, sign="+")
    if len(values) < _FEWEST:
        return text
    low, high = interval(values)
    return f"**{text}**" if low > 0 or high < 0 else text
