"""The report of a run: `report.md` and the pages of its gallery, made of what the folder holds.

Nothing is captioned or scored here, so a report may be written again at any time. Read next:
`fuseprompt.evaluation.report.table`, `fuseprompt.evaluation.report.gallery`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, Final

from fuseprompt.evaluation.metrics.base import Scores
from fuseprompt.evaluation.report.gallery import References, make_pages
from fuseprompt.evaluation.report.table import markdown_table, score_section
from fuseprompt.evaluation.runs.folder import Run, read_run, write_text
from fuseprompt.evaluation.runs.journal import Found
from fuseprompt.tasks.caption import WEIGHTS
from fuseprompt.tasks.models import PAPER

REPORT: Final = "report.md"

#: Failures that are named in a report.
_SHOWN: Final = 20

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


def write_report(
    folder: Path,
    *,
    scores: Mapping[str, Scores] = _NOTHING,
    references: References = _NOTHING,
) -> Path:
    """Write the report of a run into its folder, in place of an earlier one.

    Args:
        folder: The folder of the run, finished or not.
        scores: Scores by tone or other part of the dataset, "" for the whole.
        references: What people wrote of each image, for the gallery.

    Returns:
        The Markdown file; beside it lie `gallery.html` and, for a long run, further pages.

    Raises:
        RunError: If it is no folder of a run, or a file cannot be written.
    """
    run = read_run(folder)
    weights = weights_of(run)
    written = set()
    for name, page in make_pages(run, weights, references=references):
        write_text(folder / name, page)
        written.add(name)
    for left_over in folder.glob("gallery*.html"):
        if left_over.name not in written:
            left_over.unlink()
    write_text(folder / REPORT, make_report(run, scores))
    return folder / REPORT


def weights_of(run: Run) -> dict[str, float]:
    """Return the weight of each term that the captions of a run have."""
    given = {**WEIGHTS, **run.settings.search.get("weights", {})}
    terms = [
        name for record in run.captions.values() if record.found for name in record.found.terms
    ]
    return {name: float(given.get(name, 1.0)) for name in dict.fromkeys(terms)}


def make_report(run: Run, scores: Mapping[str, Scores]) -> str:
    """Return the Markdown report of a run.

    Args:
        run: The run.
        scores: Scores by tone or other part of the dataset, "" for the whole.

    Returns:
        The text of the file.
    """
    settings = run.settings
    parts = [f"# Captions of {settings.dataset}, {settings.split}", "\n".join(_warnings(run))]
    if scores:
        parts += ["## Scores", score_section(settings.dataset, settings.split, scores)]
    parts += ["## Coverage", _coverage(run)]
    if run.captions:
        parts += ["## Losses and time", _losses(run)]
    parts += [
        "## Settings",
        _settings(run),
        "Captions with their pictures: [gallery.html](gallery.html).",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _warnings(run: Run) -> Iterator[str]:
    """Yield why the scores must not be read as they stand."""
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


def _coverage(run: Run) -> str:
    asked, done = run.scope.num_shard_jobs, len(run.captions)
    share = 100 * done / asked if asked else 0.0
    found = [record.found for record in run.captions.values() if record.found is not None]
    open_ = sum(not one.finished for one in found)
    lines = [
        f"- {done:,} of {asked:,} captions ({share:.1f} %); the journal has {run.num_attempts:,} "
        "records.",
        f"- Captions that are no finished sentence: {open_:,}.",
    ]
    if run.failures:
        lines.append(f"- Images that failed: {len(run.failures):,}.")
    for record in list(run.failures.values())[:_SHOWN]:
        lines.append(f"  - {record.id}: {' '.join(record.error.split())}")
    if len(run.failures) > _SHOWN:
        lines.append(f"  - and {len(run.failures) - _SHOWN:,} more")
    return "\n".join(lines)


def _losses(run: Run) -> str:
    by_tone: dict[str, list[Found]] = {}
    for record in run.captions.values():
        if record.found is not None:
            by_tone.setdefault(record.sentiment, []).append(record.found)
    terms = list(weights_of(run))
    head = ["tone", "captions", "loss", *terms, "words", "seconds", "median", "slowest 5 %"]
    rows = []
    for tone, found in by_tone.items():
        seconds = sorted(one.seconds for one in found)
        means = [fmean(one.terms[t] for one in found if t in one.terms) for t in terms]
        words = fmean(len(one.caption.split()) for one in found)
        slow = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
        times = [fmean(seconds), median(seconds), slow]
        cells = [fmean(one.loss for one in found), *means, words, *times]
        rows.append([tone or "none", f"{len(found):,}", *(f"{value:.2f}" for value in cells)])
    return (
        markdown_table(head, rows)
        + "\n\nMeans over captions, terms without their weights. Seconds are the wall time of a "
        "group of images divided by their number, in one worker."
    )


def _settings(run: Run) -> str:
    settings = run.settings
    rows = [
        ["settings hash", settings.hash],
        ["annotations (SHA-256)", settings.fingerprint],
        ["dataset folder", run.scope.root],
        *_flat("model", settings.models),
        *_flat("revision", settings.revisions),
        *_flat("", settings.search),
        ["group size", str(settings.group_size)],
        ["seed", str(settings.seed)],
        ["device", settings.device],
        ["threads", str(settings.threads)],
        *_flat("version", settings.versions),
    ]
    return markdown_table(["setting", "value"], rows)


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield name and value of each setting, those of a setting inside another with both names."""
    for name, value in values.items():
        # A setting with settings of its own is called by its class: "transfer: WordTable".
        full = prefix if name == "class" else f"{prefix} {name}".strip()
        if isinstance(value, Mapping):
            yield from _flat(full, value)
        else:
            yield [full, str(value)]
