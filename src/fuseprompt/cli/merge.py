"""`fuseprompt merge`: join the shards of a run, score the whole and write its report."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseprompt.cli.evaluate import ScoringOptions, print_run
from fuseprompt.cli.options import Output
from fuseprompt.errors import DatasetError, UsageError
from fuseprompt.tasks.kinds import Folder

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
    scoring = options.scoring
    if options.out is None and len(options.runs) > 1:
        raise UsageError("--out RUN is required: several runs are joined in a folder of their own.")
    from fuseprompt.evaluation.report import conclude
    from fuseprompt.evaluation.runs.folder import merge

    run, note = merge(options.runs, options.out), options.output.note
    if run.num_missing:
        note(f"{run.num_missing:,} captions are missing and count as zero")
    scores: Any = {}
    try:
        dataset = _dataset_of(run, options.root)
    except DatasetError as error:
        note(f"no scores and no report: {error} Give its folder by --root.")
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

    place, made_for = root or Path(run.scope.root), run.settings
    sentiment = run.scope.sentiment
    dataset = read_dataset(made_for.dataset, place, split=made_for.split, sentiment=sentiment)
    if dataset.fingerprint != made_for.fingerprint:
        raise DatasetError(f"{place}: its annotations are not those the captions were made for.")
    return dataset
