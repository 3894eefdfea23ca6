"""`fuseprompt merge`: join the shards of a run, score the whole and write its report.

A thin layer over `fuseprompt.evaluation.runs.merge`, which is to be read next.
"""

import sys
from pathlib import Path
from typing import Any

from fuseprompt.cli.evaluate import print_run
from fuseprompt.cli.parser_base import UsageError
from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import Dataset, read_dataset
from fuseprompt.evaluation.runs.conclude import conclude
from fuseprompt.evaluation.runs.folder import Run
from fuseprompt.evaluation.runs.merge import merge as merge_runs


def merge(args: Any) -> int:
    """Join runs.

    Args:
        args: Parsed options (`fuseprompt.cli.parser_runs`).

    Returns:
        Exit code: 0 if no caption is missing, else 1.

    Raises:
        UsageError: If several runs have no folder to be joined in.
    """
    folders = [Path(name) for name in args.runs]
    if args.out is None and len(folders) > 1:
        raise UsageError("--out RUN is required: several runs are joined in a folder of their own.")
    merged = merge_runs(folders, None if args.out is None else Path(args.out))
    run = merged.run

    def note(text: str) -> None:
        if not args.quiet:
            print(f"note: {text}", file=sys.stderr)

    if merged.num_doubled:
        note(
            f"{merged.num_doubled:,} captions are in more than one folder, "
            f"{merged.num_differing:,} of them not the same; the first folder's count"
        )
    if run.num_missing:
        note(f"{run.num_missing:,} captions are missing and count as zero")
    scores: Any = {}
    try:
        dataset = _dataset_of(run, args.root)
    except DatasetError as error:
        note(f"no scores and no report: {error} --root says where the dataset is.")
    else:
        spice_folder = None if args.spice_folder is None else Path(args.spice_folder)
        scores = conclude(
            run, dataset, with_scores=not args.no_score, spice_folder=spice_folder, on_note=note
        )
    print_run(run, scores, as_json=args.json)
    return 0 if run.num_missing == 0 else 1


def _dataset_of(run: Run, root: str | None) -> Dataset:
    """Return the dataset that a run was made for.

    Raises:
        DatasetError: If it is not there, or is another by now.
    """
    place = Path(root if root is not None else run.scope.root)
    dataset = read_dataset(
        run.settings.dataset, place, split=run.settings.split, sentiment=run.scope.sentiment
    )
    if dataset.fingerprint != run.settings.fingerprint:
        raise DatasetError(
            f"{place}: its annotations are not those that the captions were made for."
        )
    return dataset
