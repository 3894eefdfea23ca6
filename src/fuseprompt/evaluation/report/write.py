"""The end of a run: its scores, `report.md` and the pages of its gallery.

Nothing is captioned here, so a run may be scored and reported again at any time.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.datasets.base import Dataset
from fuseprompt.evaluation.metrics.base import Scores, Scoring
from fuseprompt.evaluation.metrics.predictions import read_predictions
from fuseprompt.evaluation.metrics.score import score_parts
from fuseprompt.evaluation.report.gallery import References, make_pages
from fuseprompt.evaluation.report.table import markdown_table, score_section
from fuseprompt.evaluation.runs.folder import CAPTIONS, Run, write_text
from fuseprompt.evaluation.runs.journal import Found
from fuseprompt.evaluation.runs.plan import ALL, make_jobs
from fuseprompt.tasks.settings import PAPER

REPORT: Final = "report.md"

#: Failures that are named in a report.
_SHOWN: Final = 20


def conclude(
    run: Run,
    dataset: Dataset,
    *,
    with_scores: bool,
    spice_folder: Path | None,
    on_note: Callable[[str], object],
) -> Mapping[str, Scores]:
    """Score a run and write `scores.json`, `report.md` and the gallery into its folder.

    Images without a caption count as zero. A shard has a report and no scores.

    Returns:
        Scores by part of the dataset, "" for the whole; empty if `on_note` got a reason.

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
    write_report(run, scores, {(item.id, item.sentiment): item.references for item in items})
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


def write_report(run: Run, scores: Mapping[str, Scores], references: References) -> None:
    """Write the report of a run, finished or not, and its gallery in place of earlier ones."""
    pages = set()
    for name, page in make_pages(run, weights_of(run), references):
        write_text(run.folder / name, page)
        pages.add(name)
    for left_over in run.folder.glob("gallery*.html"):
        if left_over.name not in pages:
            left_over.unlink()
    write_text(run.folder / REPORT, make_report(run, scores))


def weights_of(run: Run) -> dict[str, float]:
    """Return the weight of each term that the captions of a run have."""
    given = run.settings.search.get("weights", {})
    terms = dict.fromkeys(name for one in run.captions.values() for name in one.terms)
    return {name: float(given.get(name, 1.0)) for name in terms}


def make_report(run: Run, scores: Mapping[str, Scores]) -> str:
    """Return the Markdown report of a run, with its scores by part of the dataset, if any."""
    settings = run.settings
    parts = [f"# Captions of {settings.dataset}, {settings.split}", "\n".join(_warnings(run))]
    if scores:
        parts += ["## Scores", score_section(settings.dataset, settings.split, scores)]
    parts += ["## Coverage", "\n".join(_coverage(run))]
    if run.captions:
        parts += ["## Losses and time", _losses(run)]
    parts += ["## Settings", _settings(run)]
    parts.append("Captions with their pictures: [gallery.html](gallery.html).")
    return "\n\n".join(part for part in parts if part) + "\n"


def _warnings(run: Run) -> Iterator[str]:
    """Yield why the scores cannot be compared with published ones."""
    models = run.settings.models
    if (models.get("lm"), models.get("image_text")) != (PAPER.lm, PAPER.image_text):
        named = " and ".join(str(models[n]) for n in ("lm", "image_text") if n in models)
        yield (
            f"- These captions were made with {named}, not with the paper's models "
            f"({PAPER.lm} and {PAPER.image_text}): published rows are shown for orientation, they "
            "are no comparison."
        )
    if run.scope.limit is not None:
        yield (
            f"- Only the first {run.scope.limit:,} images were asked for. BLEU is of these images; "
            "CIDEr also takes the rarity of words from them and is not comparable with any other "
            "set."
        )
    if run.scope.shard.count > 1:
        yield (
            f"- This is shard {run.scope.shard} of a run. Merge all shards before scoring: the "
            "mean of shards' scores is not the score of the whole."
        )


def _coverage(run: Run) -> Iterator[str]:
    asked, done = run.scope.num_shard_jobs, len(run.captions)
    share = 100 * done / asked if asked else 0.0
    unfinished = sum(not one.finished for one in run.captions.values())
    yield (
        f"- {done:,} of {asked:,} captions ({share:.1f} %); the journal has {run.num_attempts:,} "
        "records."
    )
    yield f"- Captions that are no finished sentence: {unfinished:,}."
    if run.failures:
        yield f"- Images that failed: {len(run.failures):,}."
    for record in list(run.failures.values())[:_SHOWN]:
        yield f"  - {record.id}: {' '.join(record.error.split())}"
    if len(run.failures) > _SHOWN:
        yield f"  - and {len(run.failures) - _SHOWN:,} more"


def _losses(run: Run) -> str:
    by_sentiment: dict[str, list[Found]] = {}
    for (_, sentiment), one in run.captions.items():
        by_sentiment.setdefault(sentiment, []).append(one)
    terms = list(weights_of(run))
    head = ["sentiment", "captions", "loss", *terms, "words", "seconds", "median", "slowest 5 %"]
    rows = []
    for sentiment, found in by_sentiment.items():
        seconds = sorted(one.seconds for one in found)
        cells = [
            fmean(one.loss for one in found),
            *(fmean(one.terms[t] for one in found if t in one.terms) for t in terms),
            fmean(len(one.caption.split()) for one in found),
            fmean(seconds),
            median(seconds),
            seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))],
        ]
        rows.append([sentiment or "none", f"{len(found):,}", *(f"{value:.2f}" for value in cells)])
    note = (
        "Means over captions, terms without their weights. Seconds are the wall time of a group of "
        "images divided by their number, in one worker."
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


def _settings(run: Run) -> str:
    settings = run.settings
    values = {
        "settings hash": settings.hash,
        "annotations (SHA-256)": settings.fingerprint,
        "dataset folder": run.scope.root,
        "model": settings.models,
        "revision": settings.revisions,
        **settings.search,
        "group size": settings.group_size,
        "seed": settings.seed,
        "device": settings.device,
        "threads": settings.threads,
        "version": settings.versions,
    }
    return markdown_table(["setting", "value"], _flat("", values))


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each setting, those of a setting inside another with both names."""
    for name, value in values.items():
        # A setting with settings of its own is called by its class: "proposal: WordTable".
        full = prefix if name == "class" else f"{prefix} {name}".strip()
        if isinstance(value, Mapping):
            yield from _flat(full, value)
        else:
            yield full, str(value)
