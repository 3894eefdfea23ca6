"""Measures of our own, with tiny models: what they are, and what is said where they cannot be."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics.base import Judged, Unavailable
from fuseprompt.evaluation.metrics.clip_score import clip_score, ref_clip_score
from fuseprompt.evaluation.metrics.language import distinct, nats_per_token
from fuseprompt.evaluation.metrics.measures import Subjects, Wanted, measure
from fuseprompt.evaluation.metrics.outputs import outputs_of
from fuseprompt.evaluation.metrics.sentiment import Afinn, ClassifierJudge, Vader, accuracy
from fuseprompt.models.images import open_image
from fuseprompt.objective.fluency import Fluency
from fuseprompt.text.retokenize import PaddedIds
from tests import tiny

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


def test_clip_score_is_the_authors_formula(images: dict[str, Path]) -> None:
    model = tiny.clip()
    scores = clip_score(CAPTIONS, images, model)
    assert list(scores) == ["1", "2", "3"]
    for i in "12":
        text = outputs_of(model, [f"A photo depicts {CAPTIONS[i]}"])
        cosine = float((text * model.image_features([open_image(images[i])])).sum())
        assert scores[i] == pytest.approx(2.5 * max(cosine, 0.0), abs=1e-6)
    assert scores["3"] == 0.0


def test_ref_clip_score_is_the_harmonic_mean_with_the_closest_reference() -> None:
    model = tiny.clip()
    scores = {"1": 0.5, "2": 0.5, "3": 0.0}
    found = ref_clip_score(scores, CAPTIONS, PEOPLE, model)
    assert found["1"] == pytest.approx(2 * 0.5 / 1.5, abs=1e-5)  # A reference is the same text.
    pair = outputs_of(model, [f"A photo depicts {t}" for t in (CAPTIONS["2"], *PEOPLE["2"])])
    cosine = max(0.0, float(pair[0] @ pair[1]))
    assert found["2"] == pytest.approx(2 * 0.5 * cosine / (0.5 + cosine), abs=1e-5)
    assert found["3"] == 0.0


def test_no_caption_needs_no_picture() -> None:
    assert clip_score({}, {"1": Path("none.png")}, tiny.clip()) == {"1": 0.0}
    assert ref_clip_score({"1": 0.0}, {}, PEOPLE, tiny.clip()) == {"1": 0.0}


def test_a_text_that_is_too_long_keeps_its_end() -> None:
    model = tiny.clip()
    long = "the train station " * 700
    room = model.max_length - model.tokenizer.num_special
    ids = model.tokenizer.frame(model.tokenizer.encode(long)[:room])
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
    expected = Fluency(tiny.gpt2()).evaluate(texts, ["", ""])
    assert nats_per_token(["", *texts], tiny.gpt2()) == pytest.approx(sum(expected) / 2, rel=1e-5)
    assert nats_per_token(["dog " * 2000], tiny.gpt2()) > 0
    with pytest.raises(MetricError, match="All captions are empty"):
        nats_per_token(["", ""], tiny.gpt2())


def test_a_classifier_judges_by_its_likeliest_label() -> None:
    judge = ClassifierJudge(tiny.classifier())
    texts = ["a happy dog", "misunderstandings between neighbours", "in 1987"]
    best = outputs_of(tiny.classifier(), texts).argmax(dim=-1).tolist()
    assert judge.tones(texts) == [tiny.LABELS[label] for label in best]
    assert judge.name == "tiny-classifier"


def test_a_classifier_of_other_things_is_no_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.classifier()
    monkeypatch.setattr(model, "labels", ("LABEL_0", "LABEL_1", "LABEL_2"))
    with pytest.raises(MetricError, match=r"its labels are LABEL_0, .*; expected positive and"):
        ClassifierJudge(model)
    monkeypatch.setattr(model, "labels", ("NEG", "NEU", "POS"))
    assert set(ClassifierJudge(model).tones(["a dog"])) <= set(tiny.LABELS)


@pytest.mark.parametrize("kind", [Vader, Afinn])
def test_lexicons(kind: type[Vader] | type[Afinn]) -> None:
    try:
        judge = kind()
    except MetricError as error:
        assert "pip install" in str(error)  # noqa: PT017  (either way is a pass)
        return
    texts = ["a lovely happy dog", "an ugly broken door", "a door"]
    assert judge.tones(texts) == ["positive", "negative", "neutral"]


def test_accuracy_counts_neutral_as_wrong() -> None:
    assert accuracy(["positive", "neutral", "negative", "positive"], "positive") == 0.5


# --- all together ---------------------------------------------------------------------------------


@pytest.fixture
def tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"clip": tiny.clip(), "lm": tiny.gpt2(), "judge": tiny.classifier()}
    monkeypatch.setattr("fuseprompt.models.hub.load", lambda name, **_: made[name])


@pytest.mark.usefixtures("tiny_models")
def test_all_that_is_asked_for_is_measured(images: dict[str, Path]) -> None:
    told: list[str] = []
    wanted = Wanted(
        distinct=True,
        clip_score="clip",
        fluency="lm",
        judges=("judge", "judge"),
        optimised=("clip",),
    )
    subjects = Subjects(CAPTIONS, PEOPLE, images, "positive")
    found = measure(subjects, wanted, on_metric=told.append)
    assert list(found) == [
        "distinct_1",
        "distinct_2",
        "clip_score",
        "ref_clip_score",
        "fluency",
        "sentiment_accuracy",
        "sentiment_accuracy:judge",
    ]
    judged = {name: value for name, value in found.items() if isinstance(value, Judged)}
    assert {n for n, v in judged.items() if v.independent is False} == {
        "clip_score",
        "ref_clip_score",
    }
    assert judged["fluency"].independent is True
    assert judged["fluency"].details.keys() == {"of_people"}
    assert judged["sentiment_accuracy"].details.keys() == {"neutral", "of_people"}
    # The third image has no caption, and so not the tone that was asked for.
    assert judged["sentiment_accuracy"].value <= 2 / 3
    assert told == ["distinct", "clip_score", "fluency", *list(found)[-2:]]


def test_nothing_is_measured_that_was_not_asked_for(images: dict[str, Path]) -> None:
    assert measure(Subjects(CAPTIONS, PEOPLE, images), Wanted()) == {}


@pytest.mark.usefixtures("tiny_models")
def test_nobody_said_what_was_optimised(images: dict[str, Path]) -> None:
    found = measure(Subjects(CAPTIONS, PEOPLE, images), Wanted(fluency="lm"))
    assert isinstance(found["fluency"], Judged)
    assert found["fluency"].independent is None


@pytest.mark.usefixtures("tiny_models")
@pytest.mark.parametrize(
    ("wanted", "name", "reason"),
    [
        (Wanted(clip_score="lm"), "ref_clip_score", "expected an image-text model"),
        (Wanted(clip_score="clip"), "clip_score", "no such file"),
        (Wanted(fluency="clip"), "fluency", "expected a language model"),
        (Wanted(judges=("judge",)), "sentiment_accuracy", "There is no tone to look for"),
        (Wanted(clip_score="x"), "clip_score", "KeyError"),
    ],
)
def test_what_cannot_run_says_why(wanted: Wanted, name: str, reason: str) -> None:
    gone = {i: Path(f"gone/{i}.png") for i in PEOPLE}
    value = measure(Subjects(CAPTIONS, PEOPLE, gone), wanted)[name]
    assert isinstance(value, Unavailable)
    assert reason in value.reason


@pytest.mark.usefixtures("tiny_models")
def test_a_language_model_is_no_judge(images: dict[str, Path]) -> None:
    subjects = Subjects(CAPTIONS, PEOPLE, images, "negative")
    value = measure(subjects, Wanted(judges=("lm",)))["sentiment_accuracy"]
    assert isinstance(value, Unavailable)
    assert "expected vader, afinn or a classifier" in value.reason
