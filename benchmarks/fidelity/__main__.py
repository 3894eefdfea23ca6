"""How well each transfer orders tokens, against their exact losses.

`run` keeps a journal and the exact losses, so that it may be stopped and continued; `table` prints
what a journal holds, by default the one that is kept here.

    python -m benchmarks.fidelity run --journal FILE --contexts 6
    python -m benchmarks.fidelity table

Results: benchmarks/results/fidelity.md. Read next: `benchmarks.fidelity.study`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fidelity.contexts import EDITS, captions
from benchmarks.fidelity.models import PAIRS, Models, plan
from benchmarks.fidelity.rankers import all_rankers
from benchmarks.fidelity.report import tables
from benchmarks.fidelity.study import measure
from benchmarks.journal import Journal
from fuseprompt.cache import cache_dir

JOURNAL = Path(__file__).parents[1] / "results" / "fidelity.jsonl.gz"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what was asked for, or print the tables of a journal.

    Args:
        argv: Arguments; those of the process by default.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    add, pairs = parser.add_argument, ["offline:sentence", "offline:image-text"]
    add("do", choices=("run", "table"))
    add("--journal", type=Path, default=JOURNAL)
    add("--pairs", nargs="+", choices=list(PAIRS), default=pairs, help="secondaries")
    add("--edits", nargs="+", choices=EDITS, default=["append"])
    add("--contexts", type=int, default=6, help=f"for each pair and edit, up to {len(captions())}")
    add("--folder", type=Path, default=None, help="where exact losses are kept")
    args = parser.parse_args(argv)
    journal = Journal(args.journal)
    if args.do == "table":
        print(tables(journal), end="")
        return
    towers = dict.fromkeys(PAIRS[name][0] for name in args.pairs)
    cells = plan([(tower, edit) for edit in args.edits for tower in towers], args.contexts)
    folder = cache_dir() / "truth" if args.folder is None else args.folder
    measure(Models(), cells, folder, all_rankers(), journal, secondaries=args.pairs)


if __name__ == "__main__":
    main()
