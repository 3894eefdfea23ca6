"""The end of a run: join the shards, compare two runs, score and write the report.

Nothing is captioned here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from fuseprompt.errors import MetricError, RunError
from fuseprompt.evaluation.datasets.base import Dataset
from fuseprompt.evaluation.metrics.base import Scores, Scoring
from fuseprompt.evaluation.metrics.predictions import read_predictions
from fuseprompt.evaluation.metrics.score import score_parts
from fuseprompt.evaluation.report.write import write_report
from fuseprompt.evaluation.runs.folder import (
    CAPTIONS,
    JOURNAL,
    Run,
    check_same,
    open_folder,
    read_run,
    write_merged,
    write_settings,
    write_text,
)
from fuseprompt.evaluation.runs.journal import Journal, Key, Record
from fuseprompt.evaluation.runs.plan import ALL, make_jobs


@final
@dataclass(frozen=True)
class Merged:
    """A joined run.

    `num_doubled` captions were in more than one folder, `num_differing` of them with another text;
    the first folder's is kept.
    """

    run: Run
    num_doubled: int = 0
    num_differing: int = 0


def merge(folders: Sequence[Path], out: Path | None = None) -> Merged:
    """Return runs joined in a new folder, or one run, its merged files written from its journal.

    The folders hold runs with the same settings, finished or not; `evaluate --resume` can go on
    with the new one.

    Raises:
        RunError: If one is no run, they differ in settings or in the images that were asked for,
            the new folder cannot be used, or another process is writing to it.
    """
    runs = [read_run(folder) for folder in folders]
    first = runs[0]
    if out is None:
        with open_folder(first.folder, resume=True):
            run = read_run(first.folder)
            write_merged(run)
        return Merged(run)
    for run in runs[1:]:
        check_same(first.settings, run.settings, where=first.folder)
        if run.scope.num_jobs != first.scope.num_jobs:
            raise RunError(
                f"{first.folder} is part of a run of {first.scope.num_jobs:,} captions, "
                f"{run.folder} of one of {run.scope.num_jobs:,}. Merge shards of one run."
            )
    records: dict[Key, Record] = {}
    num_doubled = num_differing = 0
    for run in runs:
        for key, record in run.records.items():
            kept = records.get(key)
            if kept is None or (record.ok and not kept.ok):
                records[key] = record
            elif kept.found is not None and record.found is not None:
                num_doubled += 1
                num_differing += kept.found.text != record.found.text
    scope = replace(first.scope, shard=ALL, num_shard_jobs=first.scope.num_jobs)
    with open_folder(out, resume=False):
        write_settings(out, first.settings, scope)
        with Journal(out / JOURNAL) as journal:
            journal.append(list(records.values()))
        merged = read_run(out)
        write_merged(merged)
    return Merged(merged, num_doubled, num_differing)


@final
@dataclass(frozen=True)
class Agreement:
    """Agreement of two runs over the same images that were grouped otherwise.

    A text has the same losses in every group, to the tolerance of the scores. A search may all the
    same end elsewhere where two candidates are nearly equal: a batch of another size rounds
    otherwise.

    `largest_difference` is that of a term between equal texts, relative to max(1, the term).
    """

    num_captions: int
    num_differing: int
    largest_difference: float


def compare(one: Run, other: Run) -> Agreement:
    """Compare two runs, caption by caption."""
    pairs = [(a, other.captions[key]) for key, a in one.captions.items() if key in other.captions]
    same = [(a.terms, b.terms) for a, b in pairs if a.text == b.text]
    differences = [
        abs(value - b[name]) / max(1.0, abs(value)) for a, b in same for name, value in a.items()
    ]
    return Agreement(len(pairs), len(pairs) - len(same), max(differences, default=0.0))


def conclude(
    run: Run,
    dataset: Dataset,
    *,
    with_scores: bool,
    spice_folder: Path | None,
    on_note: Callable[[str], object],
) -> Mapping[str, Scores]:
    """Score a run and write `scores.json`, `report.md` and the gallery into its folder.

    Images without a caption count as zero. A shard has a report and no scores: the mean of shards'
    scores is not the score of the whole. `on_note` gets the reason if there are no scores.

    Returns:
        Scores by part of the dataset, "" for the whole; empty if there are none.

    Raises:
        RunError: If a file cannot be written.
    """
    wanted = {job.key for job in make_jobs(dataset.items, limit=run.scope.limit)}
    items = tuple(item for item in dataset.items if (item.id, item.sentiment) in wanted)
    scores: Mapping[str, Scores] = {}
    if with_scores:
        try:
            scores = _score(run, replace(dataset, items=items), spice_folder)
        except MetricError as error:
            on_note(f"no scores: {error}")
    file = run.folder / "scores.json"
    if scores:
        lines = {part: one.as_json() for part, one in scores.items()}
        write_text(file, json.dumps(lines, indent=2) + "\n")
    else:
        file.unlink(missing_ok=True)  # They would be those of fewer captions.
    references = {(item.id, item.sentiment): item.references for item in items}
    write_report(run, scores, references)
    return scores


def _score(run: Run, dataset: Dataset, spice_folder: Path | None) -> Mapping[str, Scores]:
    if run.scope.shard != ALL:
        raise MetricError("this is a shard; merge all shards, the whole is then scored.")
    if not run.captions:
        raise MetricError("there is no caption.")
    if not any(item.references for item in dataset.items):
        raise MetricError("the dataset has no captions by people to compare with.")
    scoring = Scoring(
        by_domain=any(item.domain for item in dataset.items),
        spice_folder=spice_folder,
        distinct=True,
        judges=("vader", "afinn") if any(item.sentiment for item in dataset.items) else (),
        optimised=tuple(run.settings.models.values()),
    )
    return score_parts(read_predictions([run.folder / CAPTIONS]), dataset, scoring)
