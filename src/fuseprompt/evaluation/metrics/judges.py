"""Further scores than the published ones: variety, CLIPScore, fluency, sentiment."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics.base import Score, Scoring, attempt
from fuseprompt.models.base import CausalModel, outputs_of
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier
from fuseprompt.models.hub import load
from fuseprompt.models.image_text import ImageTextModel
from fuseprompt.models.images import open_image
from fuseprompt.tasks.models import load_as

_PREFIX: Final = "A photo depicts "  # The authors of CLIPScore put it before every text.
_FACTOR: Final = 2.5  # It spreads their cosines over [0, 1].
_PICTURES: Final = 16  # In memory at a time.
_MOST_PEOPLE: Final = 500  # Images whose first caption by people gets a fluency, to compare with.
_VADER_LEAST: Final = 0.05  # From here on VADER's score is a sentiment, as its authors say.

#: Sentiments, by the names that classifiers give them.
_SENTIMENTS: Final = {n: s for s in ("positive", "negative", "neutral") for n in (s, s[:3])}


def measure(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    images: Mapping[str, Path],
    scoring: Scoring,
    *,
    sentiment: str = "",
    on_metric: Callable[[str], object] = lambda _: None,
) -> dict[str, Score]:
    """Return the further scores that `scoring` asks for, by name; some captions may be missing."""
    written = [captions[i] for i in references if captions.get(i)]

    def by(model: str, value: float, **details: float) -> Score:
        known = scoring.optimised
        independent = None if known is None else model not in known
        return Score(value, by=model, independent=independent, details=details)

    def clip(name: str) -> list[Score]:
        model = load_as(name, ImageTextModel, load=load)  # type: ignore[type-abstract]
        both = clip_scores(captions, references, images, model)
        return [by(name, sum(found.values()) / len(found)) for found in both]

    def fluency(name: str) -> list[Score]:
        model = load_as(name, CausalLM, load=load)
        people = [texts[0] for texts in islice(references.values(), _MOST_PEOPLE)]
        value = nats_per_token(written, model)
        return [by(name, value, of_people=nats_per_token(people, model))]

    def accuracy(name: str) -> list[Score]:
        if sentiment not in ("positive", "negative"):
            raise MetricError(
                "There is no sentiment to look for: captions are judged where --sentiment is "
                "positive, negative or both."
            )
        judge = find_judge(name)
        found = judge(written) if written else []
        people = judge([text for texts in references.values() for text in texts])
        # A missing caption has no sentiment, and so a wrong one.
        share, neutral = (found.count(s) / len(references) for s in (sentiment, "neutral"))
        of_people = people.count(sentiment) / len(people)
        return [by(name, share, neutral=neutral, of_people=of_people)]

    scores: dict[str, Score] = {}
    if scoring.distinct:
        on_metric("distinct")
        scores |= {f"distinct_{n}": Score(distinct(written, n)) for n in (1, 2)}
    if scoring.clip_score is not None:
        on_metric("clip_score")
        scores |= attempt(["clip_score", "ref_clip_score"], partial(clip, scoring.clip_score))
    if scoring.fluency is not None:
        on_metric("fluency")
        scores |= attempt(["fluency"], partial(fluency, scoring.fluency))
    for judge in scoring.judges:
        name = "sentiment_accuracy"
        name += f":{judge}" if name in scores else ""
        on_metric(name)
        scores |= attempt([name], partial(accuracy, judge))
    return scores


def distinct(captions: Sequence[str], n: int) -> float:
    """Return the share of runs of `n` words that are different; it falls with more captions."""
    runs = [
        tuple(words[start : start + n])
        for caption in captions
        for words in [re.findall(r"[\w']+", caption.lower())]
        for start in range(len(words) - n + 1)
    ]
    return len(set(runs)) / len(runs) if runs else 0.0


def nats_per_token(captions: Sequence[str], model: CausalModel) -> float:
    """Return the mean of each caption's nats per token, with its end; empty ones are left out."""
    # Less is more fluent. Tokens differ between models: compare captions under one model only.
    written = [caption for caption in captions if caption]
    if not written:
        raise MetricError("All captions are empty: there is no fluency to score.")
    rows = [ids[: model.max_length - 1] for ids in model.tokenizer.encode_batch(written)]
    values = [float(nll.double().mean()) for nll in model.nll(rows, [0] * len(rows))]
    return sum(values) / len(values)


def clip_scores(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    images: Mapping[str, Path],
    model: ImageTextModel,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return CLIPScore and RefCLIPScore (Hessel et al., 2021) of each image of a split, by id.

    CLIPScore is 2.5 times the cosine of image and caption, at least 0; RefCLIPScore is the harmonic
    mean of that and the caption's cosine with the closest reference. Both are 0 without a caption.
    """
    alone, both = dict.fromkeys(images, 0.0), dict.fromkeys(images, 0.0)
    written = [i for i in images if captions.get(i)]
    if not written:
        return alone, both
    texts = outputs_of(model, [_PREFIX + captions[i] for i in written])
    people = outputs_of(model, [_PREFIX + text for i in written for text in references[i]])
    parts = torch.split(people, [len(references[i]) for i in written])
    closest = [
        max(0.0, float(torch.mv(part, text).max())) for text, part in zip(texts, parts, strict=True)
    ]
    cosines: list[float] = []
    for start in range(0, len(written), _PICTURES):
        pictures = [open_image(images[i]) for i in written[start : start + _PICTURES]]
        features = model.image_features(pictures).cpu()
        cosines += (features * texts[start : start + _PICTURES]).sum(dim=-1).tolist()
    for i, cosine, other in zip(written, cosines, closest, strict=True):
        alone[i] = one = _FACTOR * max(cosine, 0.0)
        both[i] = 2 * one * other / (one + other) if one > 0 and other > 0 else 0.0
    return alone, both


def find_judge(name: str) -> Callable[[Sequence[str]], list[str]]:
    """Return what names texts positive, negative or neutral: "vader", "afinn" or a classifier."""
    # VADER's authors rated texts that `offline:sentiment` was trained on. A classifier without
    # "neutral" calls most plain captions positive: compare it with none that has it.
    if name not in ("vader", "afinn"):
        model = load_as(name, Classifier, load=load)
        labels = [_SENTIMENTS.get(label.lower(), "") for label in model.labels]
        if not {"positive", "negative"} <= set(labels) or "" in labels:
            raise MetricError(
                f"{name}: its labels are {', '.join(model.labels)}; expected positive and "
                "negative, and neutral or not. Name them in id2label of its config.json."
            )
        return lambda texts: [labels[n] for n in outputs_of(model, texts).argmax(dim=-1).tolist()]
    rate: Callable[[str], float]
    try:
        if name == "vader":
            from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

            lexicon: Any = SentimentIntensityAnalyzer()
            rate, least = lambda text: lexicon.polarity_scores(text)["compound"], _VADER_LEAST
        else:
            from afinn import Afinn

            rate, least = Afinn().score, 0.0
    except ImportError:
        package = "vaderSentiment" if name == "vader" else name
        raise MetricError(f"The judge {name} needs a package: pip install {package}.") from None

    def name_of(score: float) -> str:
        is_neutral = abs(score) < least or score == 0.0
        return "neutral" if is_neutral else "positive" if score > 0 else "negative"

    return lambda texts: [name_of(rate(text)) for text in texts]
