"""`fuseprompt merge`: join the shards of a run, score the whole and write its report.

A thin layer over `fuseprompt.evaluation.runs.merge`.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseprompt.cli.evaluate import ScoringOptions, print_run
from fuseprompt.cli.options import Output
from fuseprompt.errors import DatasetError, UsageError
from fuseprompt.tasks.settings import Folder

if TYPE_CHECKING:
    from fuseprompt.evaluation.datasets import Dataset
    from fuseprompt.evaluation.runs.folder import Run


@dataclass(frozen=True)
class Options:
    """Join the folders of a run's shards, score the whole and write its report.

    Attributes:
        runs: Folder of a run; one alone is merged in place.
        out: Folder to make of several.
        root: Folder of the dataset, if it has moved.
    """

    runs: tuple[Folder, ...] = field(metadata={"argument": "RUN"})
    scoring: ScoringOptions
    output: Output
    out: Folder | None = None
    root: Folder | None = None


def run(options: Options) -> int:
    """Join runs; return 0 if no caption is missing, else 1."""
    folders, scoring = options.runs, options.scoring
    if options.out is None and len(folders) > 1:
        raise UsageError("--out RUN is required: several runs are joined in a folder of their own.")
    from fuseprompt.evaluation.runs.merge import conclude, merge

    merged = merge(folders, options.out)
    run = merged.run

    def note(text: str) -> None:
        if not options.output.quiet:
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
        dataset = _dataset_of(run, options.root)
    except DatasetError as error:
        note(f"no scores and no report: {error} --root says where the dataset is.")
    else:
        scores = conclude(
            run,
            dataset,
            with_scores=not scoring.no_score,
            spice_folder=scoring.spice_folder,
            on_note=note,
        )
    print_run(run, scores, as_json=options.output.json)
    return 0 if run.num_missing == 0 else 1


def _dataset_of(run: "Run", root: Path | None) -> "Dataset":
    """Return the dataset that a run was made for; refuse another."""
    from fuseprompt.evaluation.datasets import read_dataset

    place = Path(run.scope.root) if root is None else root
    dataset = read_dataset(
        run.settings.dataset, place, split=run.settings.split, sentiment=run.scope.sentiment
    )
    if dataset.fingerprint != run.settings.fingerprint:
        raise DatasetError(
            f"{place}: its annotations are not those that the captions were made for."
        )
    return dataset
