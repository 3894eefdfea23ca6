"""Measures of our own, with tiny models: what they are, and what is said where they cannot be."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics import judges as module
from fuseprompt.evaluation.metrics.base import Scoring
from fuseprompt.evaluation.metrics.judges import (
    clip_scores,
    distinct,
    find_judge,
    measure,
    nats_per_token,
)
from fuseprompt.models.base import outputs_of
from fuseprompt.models.images import open_image
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.text.retokenize import PaddedIds
from tests import tiny

pytestmark = pytest.mark.shapes

CAPTIONS = {"1": "a happy dog running on the beach", "2": "the train station", "3": ""}
PEOPLE = {
    "1": ("a dog on the beach", "a happy dog running on the beach"),
    "2": ("an old building",),
    "3": ("a cat",),
}


@pytest.fixture
def images(tmp_path: Path) -> dict[str, Path]:
    """Two pictures, and one that is not there."""
    for i, colour in (("1", "red"), ("2", "navy")):
        Image.new("L" if i == "2" else "RGB", (20, 30), colour).save(tmp_path / f"{i}.png")
    return {i: tmp_path / f"{i}.png" for i in "123"}


@pytest.fixture
def tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"clip": tiny.clip(), "lm": tiny.gpt2(), "judge": tiny.classifier()}
    monkeypatch.setattr(module, "load", lambda name: made[name])


def test_clip_scores_are_the_authors_formulas(
    images: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cosines are .6 and -.6: a positive one shows the factor, a negative one counts as 0."""
    model = tiny.clip()
    texts = outputs_of(model, [f"A photo depicts {CAPTIONS[i]}" for i in "12"])
    other = texts.flip(0) - (texts * texts.flip(0)).sum(dim=-1, keepdim=True) * texts
    other = other / other.norm(dim=-1, keepdim=True)
    features = torch.tensor([[0.6], [-0.6]]) * texts + 0.8 * other
    monkeypatch.setattr(model, "image_features", lambda _pictures: features)
    alone, with_people = clip_scores(CAPTIONS, PEOPLE, images, model)
    assert alone == pytest.approx({"1": 1.5, "2": 0.0, "3": 0.0}, abs=1e-6)
    # One of the references is the caption itself, so its cosine is 1: 2 * 1.5 * 1 / (1.5 + 1).
    assert with_people == pytest.approx({"1": 1.2, "2": 0.0, "3": 0.0}, abs=1e-6)
    people = {**PEOPLE, "1": PEOPLE["1"][:1]}
    pair = outputs_of(model, [f"A photo depicts {t}" for t in (CAPTIONS["1"], *people["1"])])
    cosine = float(pair[0] @ pair[1])
    assert 0 < cosine < 0.99
    _, with_people = clip_scores(CAPTIONS, people, images, model)
    assert with_people["1"] == pytest.approx(2 * 1.5 * cosine / (1.5 + cosine), abs=1e-6)


def test_each_picture_is_compared_with_its_own_caption(
    images: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One picture is in memory at a time; the second caption must not meet the first's text."""
    model = tiny.clip()
    texts = outputs_of(model, [f"A photo depicts {CAPTIONS[i]}" for i in "12"])
    features = {open_image(images[i]).getpixel((0, 0)): t for i, t in zip("12", texts, strict=True)}
    monkeypatch.setattr(module, "_PICTURES", 1)
    monkeypatch.setattr(
        model,
        "image_features",
        lambda pictures: torch.stack([features[one.getpixel((0, 0))] for one in pictures]),
    )
    alone, _ = clip_scores(CAPTIONS, PEOPLE, images, model)
    assert alone == pytest.approx({"1": 2.5, "2": 2.5, "3": 0.0}, abs=1e-5)


def test_no_caption_needs_no_picture() -> None:
    nothing = clip_scores({}, {"1": ("a cat",)}, {"1": Path("none.png")}, tiny.clip())
    assert nothing == ({"1": 0.0}, {"1": 0.0})


def test_a_text_that_is_too_long_keeps_its_end() -> None:
    model = tiny.clip()
    long = "the train station " * 700
    room = model.max_length - model.tokenizer.num_special
    ids = model.tokenizer.add_special_tokens(model.tokenizer.encode(long)[:room])
    assert len(ids) == model.max_length
    expected = model.outputs(PaddedIds.from_lists([ids]))
    torch.testing.assert_close(outputs_of(model, [long]), expected.cpu())
    assert outputs_of(model, ["a", long]).shape[0] == 2


def test_distinct_counts_runs_over_all_captions() -> None:
    assert distinct(["A dog.", "A red dog"], 1) == 3 / 5
    assert distinct(["A dog.", "A red dog"], 2) == 1.0
    assert distinct(["don't", "DON'T"], 1) == 1 / 2
    assert distinct(["", "..."], 1) == 0.0


def test_nats_per_token_are_those_of_the_fluency_term() -> None:
    texts = ["a happy dog", "the train station was crowded"]
    expected = Fluency(tiny.gpt2()).evaluate(texts, [Problem("")] * 2)
    assert nats_per_token(["", *texts], tiny.gpt2()) == pytest.approx(sum(expected) / 2, rel=1e-5)
    assert nats_per_token(["dog " * 2000], tiny.gpt2()) > 0
    with pytest.raises(MetricError, match="All captions are empty"):
        nats_per_token(["", ""], tiny.gpt2())


def test_a_classifier_judges_by_its_likeliest_label(tiny_models: None) -> None:
    texts = ["a happy dog", "misunderstandings between neighbours", "in 1987"]
    best = outputs_of(tiny.classifier(), texts).argmax(dim=-1).tolist()
    assert find_judge("judge")(texts) == [tiny.LABELS[label] for label in best]


def test_a_classifier_of_other_things_is_no_judge(
    tiny_models: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.classifier()
    monkeypatch.setattr(module, "load", lambda _name: model)
    monkeypatch.setattr(model, "labels", ("LABEL_0", "LABEL_1", "LABEL_2"))
    with pytest.raises(MetricError, match=r"its labels are LABEL_0, .*; expected positive and"):
        find_judge("judge")
    monkeypatch.setattr(model, "labels", ("NEG", "NEU", "POS"))
    assert set(find_judge("judge")(["a dog"])) <= set(tiny.LABELS)


@pytest.mark.parametrize("name", ["vader", "afinn"])
def test_lexicons(name: str) -> None:
    try:
        judge = find_judge(name)
    except MetricError as error:
        assert "pip install" in str(error)  # noqa: PT017  (either way is a pass)
        return
    texts = ["a lovely happy dog", "an ugly broken door", "a door"]
    assert judge(texts) == ["positive", "negative", "neutral"]


def test_scores_of_lexicons_become_sentiments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the packages: VADER's authors call all below .05 neutral, AFINN's only 0."""

    class Lexicon:
        def polarity_scores(self, text: str) -> dict[str, float]:
            return {"compound": float(text)}

        def score(self, text: str) -> float:
            return float(text)

    vader, afinn = ModuleType("vader"), ModuleType("afinn")
    vader.SentimentIntensityAnalyzer = afinn.Afinn = Lexicon  # type: ignore[attr-defined]
    for name in ("vaderSentiment", "vaderSentiment.vaderSentiment"):
        monkeypatch.setitem(sys.modules, name, vader)
    monkeypatch.setitem(sys.modules, "afinn", afinn)
    texts = ["0.05", "0.04", "0", "-0.04", "-0.05"]
    clear = ["neutral"] * 3
    assert find_judge("vader")(texts) == ["positive", *clear, "negative"]
    assert find_judge("afinn")(texts) == [*["positive"] * 2, "neutral", *["negative"] * 2]


# --- all together ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny_models")
def test_all_that_is_asked_for_is_measured(images: dict[str, Path]) -> None:
    told: list[str] = []
    scoring = Scoring(
        distinct=True,
        clip_score="clip",
        fluency="lm",
        judges=("judge", "judge"),
        optimised=("clip",),
    )
    found = measure(CAPTIONS, PEOPLE, images, scoring, sentiment="positive", on_metric=told.append)
    assert list(found) == [
        "distinct_1",
        "distinct_2",
        "clip_score",
        "ref_clip_score",
        "fluency",
        "sentiment_accuracy",
        "sentiment_accuracy:judge",
    ]
    judged = {name: score for name, score in found.items() if score.by}
    assert {n for n, score in judged.items() if score.independent is False} == {
        "clip_score",
        "ref_clip_score",
    }
    assert judged["fluency"].independent is True
    assert judged["fluency"].details.keys() == {"of_people"}
    assert judged["sentiment_accuracy"].details.keys() == {"neutral", "of_people"}
    assert told == ["distinct", "clip_score", "fluency", *list(found)[-2:]]


def test_neutral_and_missing_captions_have_the_wrong_sentiment(
    images: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {CAPTIONS["1"]: "positive", CAPTIONS["2"]: "neutral"}
    monkeypatch.setattr(
        module, "find_judge", lambda _name: lambda texts: [known.get(t, "negative") for t in texts]
    )
    scoring = Scoring(judges=("j",))
    score = measure(CAPTIONS, PEOPLE, images, scoring, sentiment="positive")["sentiment_accuracy"]
    assert score.value == pytest.approx(1 / 3)
    assert score.details == pytest.approx({"neutral": 1 / 3, "of_people": 1 / 4})


def test_nothing_is_measured_that_was_not_asked_for(images: dict[str, Path]) -> None:
    assert measure(CAPTIONS, PEOPLE, images, Scoring()) == {}


@pytest.mark.usefixtures("tiny_models")
def test_nobody_said_what_was_optimised(images: dict[str, Path]) -> None:
    found = measure(CAPTIONS, PEOPLE, images, Scoring(fluency="lm"))
    assert found["fluency"].independent is None
    assert found["fluency"].by == "lm"


@pytest.mark.usefixtures("tiny_models")
@pytest.mark.parametrize(
    ("scoring", "sentiment", "name", "reason"),
    [
        (Scoring(clip_score="lm"), "", "ref_clip_score", "expected an image-text model"),
        (Scoring(clip_score="clip"), "", "clip_score", "no such file"),
        (Scoring(fluency="clip"), "", "fluency", "expected a causal language model"),
        (Scoring(judges=("judge",)), "", "sentiment_accuracy", "There is no sentiment to look for"),
        (
            Scoring(judges=("lm",)),
            "negative",
            "sentiment_accuracy",
            "expected a sequence classifier",
        ),
        (Scoring(clip_score="x"), "", "clip_score", "KeyError"),
    ],
)
def test_what_cannot_run_says_why(scoring: Scoring, sentiment: str, name: str, reason: str) -> None:
    gone = {i: Path(f"gone/{i}.png") for i in PEOPLE}
    score = measure(CAPTIONS, PEOPLE, gone, scoring, sentiment=sentiment)[name]
    assert score.value is None
    assert reason in score.note
