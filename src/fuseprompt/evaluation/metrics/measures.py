"""The measures beside those of the published tables, each only where it is asked for.

They load models, and one that cannot run says why and costs no other. Read next:
`fuseprompt.cli.score`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics.base import Judged, Value, attempt

if TYPE_CHECKING:
    from fuseprompt.evaluation.metrics.sentiment import Judge
    from fuseprompt.models.hub import Model


_CLIP_SCORES: Final = ("clip_score", "ref_clip_score")

#: Images of which a caption by people is judged too, for comparison; a model takes its time.
MOST_PEOPLE: Final = 500


@final
@dataclass(frozen=True)
class Wanted:
    """Which further measures to take.

    Attributes:
        distinct: The share of different words and pairs of words.
        scene_graph: F-score of objects, attributes and relations, the stand-in for SPICE.
        clip_score: Id of the image-text model for CLIPScore and RefCLIPScore, or None.
        fluency: Id of the language model for nats per token, or None.
        judges: Judges of the tone: "vader", "afinn", or ids of classifiers.
        optimised: Ids of the models that the captions were optimised for; None if nobody knows.
        local_only: Never ask the Hub for a model.
    """

    distinct: bool = False
    scene_graph: bool = False
    clip_score: str | None = None
    fluency: str | None = None
    judges: tuple[str, ...] = ()
    optimised: tuple[str, ...] | None = None
    local_only: bool = False


@final
@dataclass(frozen=True)
class Subjects:
    """What is judged: captions, and what they are compared with.

    Attributes:
        captions: Caption by image id.
        references: Captions by people, for every image of the split.
        images: File of every image of the split.
        sentiment: Tone that the captions were written in, or "".
    """

    captions: Mapping[str, str]
    references: Mapping[str, Sequence[str]]
    images: Mapping[str, Path]
    sentiment: str = ""

    @property
    def written(self) -> list[str]:
        """The captions that are not empty, in the order of the split."""
        return [self.captions[i] for i in self.references if self.captions.get(i)]


def measure(
    subjects: Subjects, wanted: Wanted, *, on_metric: Callable[[str], None] | None = None
) -> dict[str, Value | Judged]:
    """Take further measures.

    Args:
        subjects: What is judged.
        wanted: Which measures.
        on_metric: Called with the name of each measure before it is taken.

    Returns:
        Values by name: distinct_1, distinct_2, scene_graph_f1, clip_score, ref_clip_score, fluency,
        sentiment_accuracy of the first judge, and "sentiment_accuracy:NAME" of the others.
    """
    tell = on_metric or (lambda _name: None)
    found: dict[str, Value | Judged] = {}
    if wanted.distinct:
        from fuseprompt.evaluation.metrics.language import distinct

        tell("distinct")
        found |= {f"distinct_{n}": distinct(subjects.written, n) for n in (1, 2)}
    if wanted.scene_graph:
        from fuseprompt.evaluation.metrics.scene_graph import scene_graph_f1

        tell("scene_graph_f1")
        found["scene_graph_f1"] = attempt(
            lambda: scene_graph_f1(subjects.captions, subjects.references)
        )
    if wanted.clip_score is not None:
        tell("clip_score")
        both = attempt(lambda: _clip_scores(subjects, wanted))
        found |= both if isinstance(both, dict) else dict.fromkeys(_CLIP_SCORES, both)
    if wanted.fluency is not None:
        tell("fluency")
        found["fluency"] = attempt(lambda: _fluency(subjects, wanted))
    for judge in wanted.judges:
        name = "sentiment_accuracy"
        name = f"{name}:{judge}" if name in found else name
        tell(name)
        found[name] = attempt(partial(_sentiment, subjects, wanted, judge))
    return found


def _clip_scores(subjects: Subjects, wanted: Wanted) -> dict[str, Judged]:
    from fuseprompt.evaluation.metrics.clip_score import clip_score, ref_clip_score
    from fuseprompt.models.image_text import ImageTextModel

    name = str(wanted.clip_score)
    model = _load(name, wanted)
    if not isinstance(model, ImageTextModel):
        raise MetricError(f"{name}: expected an image-text model, got a {type(model).__name__}.")
    scores = clip_score(subjects.captions, subjects.images, model)
    with_people = ref_clip_score(scores, subjects.captions, subjects.references, model)
    independent = _is_independent(name, wanted)
    return {
        key: Judged(sum(values.values()) / len(values), name, independent)
        for key, values in zip(_CLIP_SCORES, (scores, with_people), strict=True)
    }


def _fluency(subjects: Subjects, wanted: Wanted) -> Judged:
    from fuseprompt.evaluation.metrics.language import nats_per_token
    from fuseprompt.models.causal_lm import CausalLM

    name = str(wanted.fluency)
    model = _load(name, wanted)
    if not isinstance(model, CausalLM):
        raise MetricError(f"{name}: expected a language model, got a {type(model).__name__}.")
    people = [texts[0] for texts in islice(subjects.references.values(), MOST_PEOPLE)]
    return Judged(
        nats_per_token(subjects.written, model),
        name,
        _is_independent(name, wanted),
        {"of_people": nats_per_token(people, model)},
    )


def _sentiment(subjects: Subjects, wanted: Wanted, name: str) -> Judged:
    from fuseprompt.evaluation.metrics.sentiment import accuracy

    if subjects.sentiment not in ("positive", "negative"):
        raise MetricError(
            "There is no tone to look for: captions are judged where --sentiment is positive, "
            "negative or both."
        )
    judge = _find_judge(name, wanted)
    tones = judge.tones(subjects.written) if subjects.written else []
    # A missing caption has no tone, and so a wrong one.
    tones += ["missing"] * (len(subjects.references) - len(tones))
    people = judge.tones([text for given in subjects.references.values() for text in given])
    details = {
        "neutral": accuracy(tones, "neutral"),
        "of_people": accuracy(people, subjects.sentiment),
    }
    value = accuracy(tones, subjects.sentiment)
    return Judged(value, judge.name, _is_independent(name, wanted), details)


def _find_judge(name: str, wanted: Wanted) -> "Judge":
    from fuseprompt.evaluation.metrics import sentiment
    from fuseprompt.models.classifier import Classifier

    if name in ("vader", "afinn"):
        return sentiment.Vader() if name == "vader" else sentiment.Afinn()
    model = _load(name, wanted)
    if not isinstance(model, Classifier):
        raise MetricError(
            f"{name}: expected vader, afinn or a classifier, got a {type(model).__name__}."
        )
    return sentiment.ClassifierJudge(model)


def _load(name: str, wanted: Wanted) -> "Model":
    from fuseprompt.models.hub import load

    return load(name, local_only=wanted.local_only)


def _is_independent(name: str, wanted: Wanted) -> bool | None:
    return None if wanted.optimised is None else name not in wanted.optimised
