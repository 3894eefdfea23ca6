"""Captions scored against those of people; an image without one counts as one with an empty one."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.datasets.base import Dataset, Item, clean_caption
from fuseprompt.evaluation.metrics import coco_tools as tools
from fuseprompt.evaluation.metrics.base import METRICS, Score, Scores, Scoring, attempt
from fuseprompt.evaluation.metrics.coco_tools import Words, strip_special
from fuseprompt.evaluation.metrics.judges import measure
from fuseprompt.evaluation.metrics.predictions import Prediction, match

FEW_IMAGES: Final = 1000  # With fewer CIDEr-D changes by tenths with their number.


def score_parts(
    predictions: Sequence[Prediction],
    dataset: Dataset,
    scoring: Scoring | None = None,
    *,
    on_metric: Callable[[str], object] = lambda _: None,
) -> dict[str, Scores]:
    """Return scores by sentiment, "" if there is none, and by domain where asked for."""
    # A sentiment's captions are compared with its references only. A domain's CIDEr-D takes the
    # rarity of words from that domain, so the whole is no mean of its domains.
    scoring = scoring or Scoring()
    scores: dict[str, Scores] = {}
    for sentiment in sorted({item.sentiment for item in dataset.items}):
        items = [item for item in dataset.items if item.sentiment == sentiment]
        captions = match(predictions, items, sentiment=sentiment)
        if not captions:
            asked = f" for the sentiment {sentiment}" if sentiment else ""
            raise MetricError(f"There is no caption{asked} to score. Give at least one.")
        parts = {sentiment: items}
        if scoring.by_domain:
            domains = sorted({item.domain for item in items if item.id in captions} - {""})
            parts |= {name: [item for item in items if item.domain == name] for name in domains}
        for part, of_part in parts.items():
            head = f"{part}: " if part else ""
            log_part = partial(lambda head, name: on_metric(head + name), head)
            scores[part] = _score_items(captions, of_part, scoring, log_part)
    return scores


def score(
    predictions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    spice_folder: Path | None = None,
    on_metric: Callable[[str], object] = lambda _: None,
) -> Scores:
    """Return the metrics of the published tables; one that cannot run costs no other."""
    if not predictions:
        raise MetricError("There is no caption to score. Give at least one.")
    if unknown := [i for i in predictions if i not in references]:
        raise MetricError(
            f"{len(unknown)} captions are for images without references, such as {unknown[0]!r}. "
            "Give captions and references of the same split."
        )
    if bare := [i for i, captions in references.items() if not captions]:
        raise MetricError(
            f"{len(bare)} images have no reference, such as {bare[0]!r}. Leave them out of the "
            "split, or use a dataset with captions."
        )

    def compute() -> list[Score]:
        on_metric("words")
        texts: list[str] = []  # of captions and references, which are tokenized in one go
        for i, given in references.items():
            texts += (strip_special(predictions.get(i, "")), *given)
        lines = iter(tools.tokenize(texts))
        rows = {i: tuple(islice(lines, 1 + len(given))) for i, given in references.items()}
        ours, theirs = ({i: row[0] for i, row in rows.items()}, {i: r[1:] for i, r in rows.items()})
        words = Words(ours, theirs)

        def cider() -> list[float]:
            if len(words.captions) < 2:
                raise MetricError(
                    "CIDEr-D weighs words by how few images have them: one image is not enough."
                )
            return [fmean(tools.cider_d(words).values())]

        on_metric("bleu")
        found = attempt(METRICS[:4], lambda: tools.bleu(words))
        for name, metric in {
            "rouge_l": lambda: [tools.rouge_l(words)],
            "cider": cider,
            "meteor": lambda: [tools.meteor(words)],
            "spice": lambda: [tools.spice(words, tools.find_corenlp(spice_folder))],
        }.items():
            on_metric(name)
            found |= attempt([name], metric)
        return [found[name] for name in METRICS]

    return Scores(
        images=len(references),
        coverage=len(predictions) / len(references),
        values=attempt(METRICS, compute),
        notes=tuple(_remarks(predictions, len(references))),
    )


def _score_items(
    captions: Mapping[str, str], items: Sequence[Item], scoring: Scoring, log: Callable[[str], Any]
) -> Scores:
    """Return the published metrics of the captions of some items, then those of the judges."""
    scored = {item.id: item for item in items if item.references}
    if not scored:
        raise MetricError(
            "The dataset has no captions by people, with which captions could be compared. Add "
            "them, or choose another split."
        )
    references = {i: item.references for i, item in scored.items()}
    here = {i: text for i, text in captions.items() if i in scored}
    scores = score(here, references, spice_folder=scoring.spice_folder, on_metric=log)
    extra = measure(
        {i: clean_caption(strip_special(text)) for i, text in here.items()},
        references,
        {i: scored[i].image for i in references},
        scoring,
        sentiment=items[0].sentiment,
        on_metric=log,
    )
    notes = scores.notes
    if bare := len(items) - len(scored):
        notes = (f"{bare:,} images have no captions by people and are left out", *notes)
    return replace(scores, values={**scores.values, **extra}, notes=notes)


def _remarks(predictions: Mapping[str, str], num_images: int) -> list[str]:
    """Return the notes without which the numbers would be misread."""
    notes = []
    if missing := num_images - len(predictions):
        notes.append(f"{missing:,} of {num_images:,} images have no caption and count as empty")
    stripped = [strip_special(text) for text in predictions.values()]
    cleaned = [clean_caption(text) for text in stripped]
    if empty := cleaned.count(""):
        notes.append(f"{empty:,} captions are empty")
    pairs = zip(stripped, predictions.values(), strict=True)
    if special := sum(text != given for text, given in pairs):
        notes.append(f"{special:,} captions had special tokens, which were removed")
    starts = Counter(" ".join(text.lower().split()[:3]) for text in cleaned if text)
    if start := next((s for s, n in starts.most_common(1) if n >= max(20, 0.8 * len(cleaned))), ""):
        notes.append(f"the captions begin with {start!r}, which is scored as part of them")
    if num_images < FEW_IMAGES:
        notes.append(
            f"scored on {num_images:,} images: compare CIDEr-D only with scores on the same ones"
        )
    return notes
