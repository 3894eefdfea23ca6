"""`fuseprompt fidelity`: how well each transfer orders tokens, against their exact losses.

A thin layer over `fuseprompt.evaluation.fidelity`, which is to be read next.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fuseprompt.cli.parser_base import UsageError

if TYPE_CHECKING:
    from fuseprompt.evaluation.towers import Cell


def fidelity(
    *,
    pairs: str = "offline:sentence,offline:image-text",
    edits: str = "append",
    contexts: int = 4,
    hours: float | None = None,
    transfers: str | None = None,
    folder: Path | None = None,
    plot: Path | None = None,
    breakdown: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Judge transfers; the exact losses are computed once and kept.

    Args:
        pairs: Ids of secondaries, separated by commas.
        edits: "append", "replace", or both.
        contexts: Contexts per cell, 1 to 200; the first ones are of 3, 8, 15, 3, ... words.
        hours: Compute no more exact losses after so long, and judge what there is.
        transfers: Names of what to judge, separated by commas; all by default.
        folder: The truth cache; by default in the cache folder.
        plot: Picture to draw.
        breakdown: Print tables by length of context and by number of pieces too.
        quiet: Print nothing but results and errors.
        json: Print JSON lines.

    Returns:
        Exit code: 0, or 1 if no context could be judged in time.

    Raises:
        UsageError: If a pair, an edit, a transfer or a number is unknown.
    """
    from fuseprompt.cli.bar import silence_libraries
    from fuseprompt.evaluation import fidelity_report as report
    from fuseprompt.evaluation.contexts import EDITS, captions
    from fuseprompt.evaluation.fidelity import measure
    from fuseprompt.evaluation.judged import all_rankers
    from fuseprompt.evaluation.towers import PAIRS, Models, plan
    from fuseprompt.models.offline import cache_dir

    secondaries = _chosen("pair", pairs, list(PAIRS))
    wanted = _chosen("edit", edits, list(EDITS))
    rankers = all_rankers()
    if transfers is not None:
        names = _chosen("transfer", transfers, [r.name for r in rankers])
        rankers = tuple(r for r in rankers if r.name in names)
    if contexts > len(captions()):
        raise UsageError(f"--contexts {contexts}: there are {len(captions())} contexts.")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise UsageError(f"--plot {plot}: there is no folder {plot.absolute().parent}.")
    silence_libraries()
    towers = dict.fromkeys(PAIRS[name][0] for name in secondaries)
    cells = plan([(tower, edit) for edit in wanted for tower in towers], contexts)
    measured = measure(
        Models(),
        cells,
        folder if folder is not None else cache_dir() / "truth",
        rankers,
        secondaries=secondaries,
        hours=hours,
        on_cell=None if quiet or json else _teller(),
    )
    if not measured:
        print("error: no exact losses are on disk, and none could be had in time.", file=sys.stderr)
        return 1
    if json:
        print("\n".join(report.as_json(measured, rankers)))
    else:
        print(report.tables(measured))
        print("\n## Goals\n\n" + report.goals(measured))
        print("\n## Paired differences\n")
        print(report.paired(measured, figures=("rho", "recall 10@cost128", "recall 10@cost1024")))
        if breakdown:
            print("## By words of the context\n\n" + report.short_tables(measured, by="words"))
            print(
                "\n## By pieces of the candidate\n\n" + report.short_tables(measured, by="pieces")
            )
    if plot is not None:
        report.plot(measured, plot)
    return 0


def _chosen(what: str, text: str, known: list[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(known))
    if unknown or not names:
        raise UsageError(f"{what} {text!r}: expected one or more of {', '.join(known)}.")
    return names


def _teller() -> "Callable[[Cell, int, int, float], None]":
    """Return what says on stderr which context is next and when all will be done."""
    start = time.monotonic()

    def tell(cell: "Cell", done: int, total: int, _elapsed: float) -> None:
        spent = time.monotonic() - start
        left = f", about {spent / done * (total - done) / 60:.0f} min left" if done else ""
        print(
            f"[{done + 1}/{total}] {cell.tower}, {cell.edit}, context {cell.index}{left}",
            file=sys.stderr,
            flush=True,
        )

    return tell
