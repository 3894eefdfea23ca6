"""Scores as a Markdown table above published rows, and the notes that it needs.

The published rows are in `fuseprompt/data/published_scores.yaml`, each with its source.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final, final

import yaml  # type: ignore[import-untyped, unused-ignore]

from fuseprompt.evaluation.metrics.base import METRICS, Score, Scores

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

#: What a score by a model is worth, by whether the captions were not optimised for that model.
_KINDS: Final[Mapping[bool | None, str]] = {
    True: ", which the captions were not optimised for",
    False: ", **which the captions were optimised for**",
    None: ", of which it is not known whether the captions were optimised for it",
}


@final
@dataclass(frozen=True)
class PublishedRow:
    """Scores of a method as published, in percent, by the names of our metrics."""

    # `note` is its difference from other rows; `trained` is whether captions were trained on.

    name: str
    scores: Mapping[str, float]
    source: str
    note: str = ""
    trained: bool = False


def published_rows(dataset: str, split: str, sentiment: str = "") -> tuple[PublishedRow, ...]:
    """Return the published rows of a dataset, the paper's first; none for most."""
    asked = (dataset, split, sentiment)
    for table in _published()["tables"]:
        if (table["dataset"], table["split"], table.get("sentiment", "")) == asked:
            return tuple(
                PublishedRow(**{"source": table["source"], **row}) for row in table["rows"]
            )
    return ()


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


def _table(scores: Scores, published: Sequence[PublishedRow]) -> str:
    values = scores.values
    if not published:
        metrics = list(values)
        cells = [show(m, values[m]) for m in metrics]
        return markdown_table(
            ["", *(TITLES.get(m, m) for m in metrics)], [["**this run**", *cells]]
        )
    # With others' rows only what they report, or the table is as wide as it is empty.
    reported = dict.fromkeys(metric for row in published for metric in row.scores)
    metrics = [*(m for m in METRICS if m in reported), *(m for m in reported if m not in METRICS)]
    rows = [["**this run**", "", *(show(m, values.get(m)) for m in metrics)]]
    for row in published:
        cells = [f"{row.scores[m]:.2f}" if m in row.scores else "-" for m in metrics]
        rows.append([row.name, "yes" if row.trained else "no", *cells])
    return markdown_table(["", "trained on captions", *(TITLES.get(m, m) for m in metrics)], rows)


def _notes(scores: Scores, published: Sequence[PublishedRow]) -> list[str]:
    lines = [f"Images: {scores.images:,}, {100 * scores.coverage:.1f} % of them with a caption."]
    for metric, score in scores.values.items():
        title = TITLES.get(metric, metric)
        if score.value is None:
            lines.append(f"{title}: not available: {score.note}")
        elif score.by:
            kind = _KINDS[score.independent]
            details = "".join(f"; {name}: {number:.3f}" for name, number in score.details.items())
            lines.append(f"{title}: {show(metric, score)}, by {score.by}{kind}{details}.")
    lines += scores.notes
    for row in published:
        if row.note or row.source != published[0].source:
            lines.append(f"{row.name}: {row.source}{'; ' if row.note else ''}{row.note}.")
    if published:
        lines.append(f"All other rows: {published[0].source}.")
    return [f"- {' '.join(line.split())}" for line in lines]


def _cell(text: str) -> str:
    """Return a text that cannot leave its cell, nor be taken for HTML."""
    line = " ".join(text.split())
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
