"""`python -m benchmarks.fidelity`: how well each transfer orders tokens, against exact losses.

The exact losses are computed once and kept. Read next: `benchmarks.fidelity.study`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.fidelity import report
from benchmarks.fidelity.contexts import EDITS, captions
from benchmarks.fidelity.models import PAIRS, Cell, Models, plan
from benchmarks.fidelity.rankers import all_rankers
from benchmarks.fidelity.study import measure
from fuseprompt.cache import cache_dir
from fuseprompt.errors import FuseError


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for and print tables or JSON lines.

    Args:
        argv: Arguments; those of the process by default.

    Returns:
        The exit code: 0, or 1 if nothing could be measured in time.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    rankers = all_rankers()
    try:
        secondaries = _chosen("pair", args.pairs, list(PAIRS))
        edits = _chosen("edit", args.edits, list(EDITS))
        if args.transfers is not None:
            names = _chosen("transfer", args.transfers, [r.name for r in rankers])
            rankers = tuple(r for r in rankers if r.name in names)
        if not 0 < args.contexts <= len(captions()):
            raise ValueError(f"--contexts {args.contexts}: there are {len(captions())} contexts.")
        if args.plot is not None and not args.plot.absolute().parent.is_dir():
            raise ValueError(f"--plot {args.plot}: there is no such folder.")
    except ValueError as error:
        parser.error(str(error))
    towers = dict.fromkeys(PAIRS[name][0] for name in secondaries)
    cells = plan([(tower, edit) for edit in edits for tower in towers], args.contexts)
    try:
        measured = measure(
            Models(),
            cells,
            args.folder if args.folder is not None else cache_dir() / "truth",
            rankers,
            secondaries=secondaries,
            hours=args.hours,
            on_cell=None if args.quiet or args.json else _progress(),
        )
        if not measured:
            print("error: no exact losses are on disk, nor could be had in time.", file=sys.stderr)
            return 1
        if args.json:
            print("\n".join(report.as_json(measured, rankers)))
        else:
            print(report.page(measured, breakdown=args.breakdown))
        if args.plot is not None:
            report.plot(measured, args.plot)
    except FuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    add = parser.add_argument
    add(
        "--pairs",
        default="offline:sentence,offline:image-text",
        help=f"secondaries, with commas: {', '.join(PAIRS)}",
    )
    add("--edits", default="append", help="append, replace, or both with a comma")
    add("--contexts", type=int, default=4, help="contexts for each secondary and edit")
    add("--hours", type=float, default=None, help="compute no more after so long")
    add("--transfers", default=None, metavar="NAMES", help="measure only these, with commas")
    add("--folder", type=Path, default=None, help="where exact losses are kept")
    add("--plot", type=Path, default=None, metavar="FILE.png", help="recall against evaluations")
    add("--breakdown", action="store_true", help="tables by words of context and by pieces, too")
    add("--quiet", action="store_true", help="print results and errors only")
    add("--json", action="store_true", help="print JSON lines on stdout")
    return parser


def _chosen(what: str, text: str, known: list[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or set(names) - set(known):
        raise ValueError(f"{what} {text!r}: expected one or more of {', '.join(known)}.")
    return names


def _progress() -> Callable[[Cell, int, int, float], None]:
    """Return what prints on stderr which context is next and when all will be done."""
    start = time.monotonic()

    def show(cell: Cell, done: int, total: int, _elapsed: float) -> None:
        spent = time.monotonic() - start
        left = f", about {spent / done * (total - done) / 60:.0f} min left" if done else ""
        print(
            f"[{done + 1}/{total}] {cell.tower}, {cell.edit}, context {cell.index}{left}",
            file=sys.stderr,
            flush=True,
        )

    return show


if __name__ == "__main__":
    sys.exit(main())
