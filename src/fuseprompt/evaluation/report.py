"""The end of a run: its scores, `report.md` and the pages of its gallery.

Nothing is captioned here, so a run may be scored and reported again at any time. Scores stand above
published rows (`fuseprompt/data/published_scores.yaml`), with the notes that they need.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import yaml  # type: ignore[import-untyped, unused-ignore]

from fuseprompt.errors import ImageError, MetricError
from fuseprompt.evaluation.datasets.base import Dataset
from fuseprompt.evaluation.metrics.base import METRICS, Score, Scores, Scoring
from fuseprompt.evaluation.metrics.predictions import read_predictions
from fuseprompt.evaluation.metrics.score import score_parts
from fuseprompt.evaluation.page import picture_url, render_page
from fuseprompt.evaluation.runs.folder import CAPTIONS, Run, write_text
from fuseprompt.evaluation.runs.journal import Found, Key, Record
from fuseprompt.evaluation.runs.plan import ALL, make_jobs
from fuseprompt.models.images import open_image
from fuseprompt.tasks.settings import PAPER

REPORT: Final = "report.md"

#: Captions on a page; about 3 MB with their pictures.
PER_PAGE: Final = 200

#: Pixels of a picture's longer side.
_PICTURE: Final = 320

#: Captions by people, by key.
References = Mapping[Key, Sequence[str]]


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


def page_name(number: int) -> str:
    """Return the file name of a page, from 1."""
    return "gallery.html" if number == 1 else f"gallery-{number}.html"


def make_pages(
    run: Run, weights: Mapping[str, float], references: References, *, per_page: int = PER_PAGE
) -> Iterator[tuple[str, str]]:
    """Yield file name and HTML of each page, one without cards for a run without records."""
    records = list(run.records.values())
    names = [page_name(i + 1) for i in range(max(1, math.ceil(len(records) / per_page)))]
    title = f"Captions of {run.settings.dataset}, {run.settings.split}"
    for number, name in enumerate(names, start=1):
        some = records[(number - 1) * per_page : number * per_page]
        cards = [_card(r, references.get(r.key, ())) for r in some]
        page = {"title": title, "style": "gallery.css", "names": names, "number": number}
        yield name, render_page("gallery.html", run=run, weights=weights, cards=cards, **page)


def _card(record: Record, references: Sequence[str]) -> dict[str, Any]:
    """Return what the template shows of a record."""
    try:
        url = picture_url(open_image(record.image), longest=_PICTURE)
    except ImageError:
        url = ""
    return {"record": record, "url": url, "references": references}


def make_report(run: Run, scores: Mapping[str, Scores]) -> str:
    """Return the Markdown report of a run, with its scores by part of the dataset, if any."""
    settings, models = run.settings, run.settings.models
    used = [models.get("lm"), models.get("image_text")]
    text = render_page(
        "report.md",
        run=run,
        paper=PAPER,
        is_paper=used == [PAPER.lm, PAPER.image_text],
        models=" and ".join(filter(None, used)),
        failures=list(run.failures.values()),
        scores=score_section(settings.dataset, settings.split, scores) if scores else "",
        losses=_losses(run) if run.captions else "",
        settings=_settings(run),
    )
    return re.sub(r"\n{3,}", "\n\n", text)


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
    return markdown_table(head, rows)


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


#: Headings of metrics; others are shown under their own names.
TITLES: Final[Mapping[str, str]] = {
    **{f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)},
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "spice": "SPICE",
    "sentiment_accuracy": "sentiment",
}

#: Shown in percent, as shares are; a likelihood in nats is no share.
PERCENT: Final = frozenset({*METRICS, "sentiment_accuracy"})


def published_rows(dataset: str, split: str, sentiment: str = "") -> list[dict[str, Any]]:
    """Return the published rows of a dataset, the paper's first; none for most.

    Each has `name`, `scores` in percent by the names of our metrics, and `source`; some have a
    `note` on what differs from other rows, and `trained` where captions were trained on.
    """
    asked = (dataset, split, sentiment)
    for table in _published()["tables"]:
        if (table["dataset"], table["split"], table.get("sentiment", "")) == asked:
            return [{"source": table["source"], **row} for row in table["rows"]]
    return []


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, without a line break at its end; no text can leave its cell."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def score_section(dataset: str, split: str, scores: Mapping[str, Scores]) -> str:
    """Return a Markdown table for the scores of each part of a dataset, with published rows."""
    parts: list[str] = []
    seen: set[str] = set()
    for part, one in scores.items():
        rows = published_rows(dataset, split, part)
        # What is missing for one part is mostly missing for all, and written once.
        notes = [note for note in _notes(one, rows) if note not in seen]
        seen.update(notes)
        parts += [f"### {part}" if part else "", _table(one, rows), "\n".join(notes)]
    parts.append(_published()["remarks"].get(dataset, ""))
    return "\n\n".join(part for part in parts if part)


def show(metric: str, score: Score | None) -> str:
    """Return a score as it is printed: metrics and shares in percent, other numbers as they are."""
    if score is None or score.value is None:
        return "-"
    # Such as sentiment_accuracy:afinn, of several classifiers.
    is_share = metric.partition(":")[0] in PERCENT
    return f"{100 * score.value:.2f}" if is_share else f"{score.value:.3f}"


@cache
def _published() -> dict[str, Any]:
    file = resources.files("fuseprompt").joinpath("data", "published_scores.yaml")
    return dict(yaml.safe_load(file.read_text("utf-8")))


def _table(scores: Scores, published: Sequence[Mapping[str, Any]]) -> str:
    values = scores.values
    if not published:
        metrics = list(values)
        cells = [show(m, values[m]) for m in metrics]
        return markdown_table(
            ["", *(TITLES.get(m, m) for m in metrics)], [["**this run**", *cells]]
        )
    # With others' rows only what they report, or the table is as wide as it is empty.
    reported = dict.fromkeys(metric for row in published for metric in row["scores"])
    metrics = [*(m for m in METRICS if m in reported), *(m for m in reported if m not in METRICS)]
    rows = [["**this run**", "", *(show(m, values.get(m)) for m in metrics)]]
    for row in published:
        cells = [f"{row['scores'][m]:.2f}" if m in row["scores"] else "-" for m in metrics]
        rows.append([row["name"], "yes" if row.get("trained") else "no", *cells])
    return markdown_table(["", "trained on captions", *(TITLES.get(m, m) for m in metrics)], rows)


def _notes(scores: Scores, published: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"Images: {scores.images:,}, {100 * scores.coverage:.1f} % of them with a caption."]
    for metric, score in scores.values.items():
        title = TITLES.get(metric, metric)
        if score.value is None:
            lines.append(f"{title}: not available: {score.note}")
        elif score.by:
            lines.append(f"{title}: {show(metric, score)}, {score.origin}.")
    lines += scores.notes
    for row in published:
        note = f"; {row['note']}" if row.get("note") else ""
        if note or row["source"] != published[0]["source"]:
            lines.append(f"{row['name']}: {row['source']}{note}.")
    if published:
        lines.append(f"All other rows: {published[0]['source']}.")
    return [f"- {' '.join(line.split())}" for line in lines]


def _cell(text: str) -> str:
    """Return a text that cannot leave its cell, nor be taken for HTML."""
    line = " ".join(text.split())
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
