"""The scores of a dataset's parts: each tone by itself, and each domain of NoCaps where asked for.

A tone's captions are compared with references of that tone only. A domain's CIDEr-D takes the
rarity of words from that domain, so the whole is no mean of its domains. Read next:
`fuseprompt.cli.score`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.clean import clean_caption
from fuseprompt.evaluation.datasets.base import Dataset, Item
from fuseprompt.evaluation.metrics.base import Scores
from fuseprompt.evaluation.metrics.measures import Subjects, Wanted, measure
from fuseprompt.evaluation.metrics.predictions import Prediction, match
from fuseprompt.evaluation.metrics.score import score
from fuseprompt.evaluation.metrics.tokens import strip_special


@final
@dataclass(frozen=True)
class Scoring:
    """How captions are scored.

    Attributes:
        subset: Score only the images that have a caption.
        by_domain: Score each domain too.
        spice_folder: Folder of Stanford CoreNLP 3.6.0, or None.
        wanted: Further measures.
    """

    subset: bool = False
    by_domain: bool = False
    spice_folder: Path | None = None
    wanted: Wanted = field(default_factory=Wanted)


def score_parts(
    predictions: Sequence[Prediction],
    dataset: Dataset,
    scoring: Scoring | None = None,
    *,
    on_metric: Callable[[str], None] | None = None,
) -> dict[str, Scores]:
    """Score captions of a dataset.

    Args:
        predictions: The captions, of all shards.
        dataset: The split that they were made for.
        scoring: How; by default the metrics of the published tables, on all images.
        on_metric: Called with the part and the name of each metric before it is computed.

    Returns:
        Scores by tone, or by domain after those of the whole, which is "".

    Raises:
        MetricError: If a caption is for no image of the split, two are for one, or there are no
            references.
    """
    scoring = scoring or Scoring()
    tones = sorted({item.sentiment for item in dataset.items})
    scores: dict[str, Scores] = {}
    for tone in tones:
        items = [item for item in dataset.items if item.sentiment == tone]
        captions = match(predictions, items, sentiment=tone)
        if not captions:
            asked = f" for the tone {tone}" if tone else ""
            raise MetricError(f"There is no caption{asked} to score. Give at least one.")
        captioned = [item for item in items if item.id in captions]
        for part in (tone, *(_domains(captioned) if scoring.by_domain else ())):
            of_part = items if part == tone else [item for item in items if item.domain == part]
            tell = None if on_metric is None else _prefixed(on_metric, part)
            scores[part] = _score_items(captions, of_part, scoring, tell)
    return scores


def _score_items(
    captions: dict[str, str],
    items: Sequence[Item],
    scoring: Scoring,
    tell: Callable[[str], None] | None,
) -> Scores:
    judged = [item for item in items if item.references]
    if not judged:
        raise MetricError(
            "The dataset has no captions by people, with which captions could be compared. Add "
            "them (fuseprompt datasets says how), or choose another split."
        )
    references = {item.id: item.references for item in judged}
    here = {i: text for i, text in captions.items() if i in references}
    scores = score(
        here,
        references,
        subset=scoring.subset,
        spice_folder=scoring.spice_folder,
        on_metric=tell,
    )
    if scoring.subset:
        references = {i: texts for i, texts in references.items() if i in here}
    images = {item.id: item.image for item in judged if item.id in references}
    cleaned = {i: clean_caption(strip_special(text)) for i, text in here.items()}
    subjects = Subjects(cleaned, references, images, judged[0].sentiment)
    notes = scores.notes
    if bare := len(items) - len(judged):
        notes = (f"{bare:,} images have no captions by people and are left out", *notes)
    extra = measure(subjects, scoring.wanted, on_metric=tell)
    return replace(scores, extra=extra, notes=notes)


def _domains(items: Sequence[Item]) -> list[str]:
    return sorted({item.domain for item in items if item.domain})


def _prefixed(tell: Callable[[str], None], part: str) -> Callable[[str], None]:
    return lambda name: tell(f"{part}: {name}" if part else name)
