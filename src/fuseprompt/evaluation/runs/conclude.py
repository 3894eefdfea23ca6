"""The end of a run: its scores and its report, made from the content of its folder.

A run without captions by people has a report and no scores, and so has a shard: the mean of shards'
scores is another number than the score of the whole. Read next:
`fuseprompt.evaluation.metrics.score`, `fuseprompt.evaluation.report.write`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.datasets.base import Dataset
from fuseprompt.evaluation.metrics.base import Scores, Scoring
from fuseprompt.evaluation.metrics.predictions import read_predictions
from fuseprompt.evaluation.metrics.score import score_parts
from fuseprompt.evaluation.report.write import write_report
from fuseprompt.evaluation.runs.folder import CAPTIONS, Run, write_text
from fuseprompt.evaluation.runs.plan import ALL, make_jobs


def conclude(
    run: Run,
    dataset: Dataset,
    *,
    with_scores: bool = True,
    spice_folder: Path | None = None,
    on_note: Callable[[str], object],
) -> Mapping[str, Scores]:
    """Score a run and write `scores.json`, `report.md` and the gallery into its folder.

    Args:
        run: The run, complete or not; images without a caption count as zero.
        dataset: The dataset that it was made for.
        with_scores: Whether to score.
        spice_folder: Folder of Stanford CoreNLP 3.6.0, or None.
        on_note: Called with the reason if there are no scores.

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
    write_report(run, scores=scores, references=references)
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
