"""All metrics together: what is missing costs no other, and nothing is left out of a mean."""

import json
import zipfile
from pathlib import Path

import pytest

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics import coco_tools as tools
from fuseprompt.evaluation.metrics.base import METRICS, Score, Scores
from fuseprompt.evaluation.metrics.score import score
from tests.evaluation.metrics.tools import LIBRARY, needs_tools, use_light_library

REFERENCES = {
    "1": ("A red kite over a pond.", "A kite in the sky."),
    "2": ("A dog sleeps.",),
    "3": ("Two cats on a mat.", "Cats."),
}
CAPTIONS = {"1": "A red kite in the sky.", "2": "The dog sleeps on a mat.", "3": "Two cats."}


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let METEOR do without its large table."""
    use_light_library(tmp_path / "light", monkeypatch)


@pytest.fixture
def no_meteor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let METEOR fail at once."""

    def fail(*_: object) -> float:
        raise MetricError("METEOR was not asked")

    monkeypatch.setattr(tools, "meteor", fail)


def published(scores: Scores) -> dict[str, float | None]:
    """Return the numbers of the published metrics; one without is None."""
    return {name: scores.values[name].value for name in METRICS}


def reasons(scores: Scores) -> set[str]:
    """Return the reasons of the metrics that have no value."""
    return {score.note for score in scores.values.values() if score.value is None}


@needs_tools
@pytest.mark.usefixtures("quick")
def test_all_metrics_but_spice_have_values() -> None:
    told: list[str] = []
    scores = score(CAPTIONS, REFERENCES, on_metric=told.append)
    assert told == ["words", "bleu", "rouge_l", "cider", "meteor", "spice"]
    assert (scores.images, scores.coverage) == (3, 1.0)
    for name in METRICS[:-1]:
        value = scores.values[name].value
        assert value is not None
        assert 0.0 < value < (10.0 if name == "cider" else 1.0)
    assert scores.values["spice"].value is None
    assert any("3 images" in note for note in scores.notes)


@needs_tools
def test_without_java_every_metric_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (reason,) = reasons(score(CAPTIONS, REFERENCES))
    assert reason.startswith("Java is not installed")


def test_without_the_library_every_metric_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda _name: None)
    (reason,) = reasons(score(CAPTIONS, REFERENCES))
    assert reason.startswith("The package pycocoevalcap is not installed")


@needs_tools
def test_one_metric_that_fails_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> float:
        raise RuntimeError("odd\nfault")

    monkeypatch.setattr(tools, "meteor", fail)
    values = score(CAPTIONS, REFERENCES).values
    assert values["meteor"] == Score(None, "RuntimeError: odd fault")
    assert values["bleu_4"].value is not None
    assert values["cider"].value is not None


@needs_tools
@pytest.mark.usefixtures("no_meteor")
def test_a_missing_caption_counts_as_an_empty_one() -> None:
    some = {i: CAPTIONS[i] for i in "12"}
    scores = score(some, REFERENCES)
    empty = score({**some, "3": ""}, REFERENCES)
    assert (scores.images, scores.coverage) == (3, pytest.approx(2 / 3))
    assert scores.values == empty.values
    assert "1 of 3 images have no caption and count as empty" in scores.notes
    assert "1 captions are empty" in empty.notes


@needs_tools
@pytest.mark.usefixtures("no_meteor")
def test_one_image_has_no_cider() -> None:
    scores = score({"1": CAPTIONS["1"]}, {"1": REFERENCES["1"]})
    assert "one image is not enough" in scores.values["cider"].note
    assert scores.values["rouge_l"].value is not None


@needs_tools
@pytest.mark.usefixtures("quick")
def test_odd_captions_change_no_other_caption() -> None:
    odd = {
        **CAPTIONS,
        "4": "A\nred\fkite\u2028in\r\x00the\v sky.<|endoftext|>",
        "5": "dog " * 2000,
        "6": " ",
    }
    plain = {**CAPTIONS, "4": "A red kite in the sky.", "5": "dog " * 2000, "6": ""}
    references = {**REFERENCES, **dict.fromkeys("456", ("A kite.",))}
    one, other = score(odd, references), score(plain, references)
    assert one.values == other.values
    assert reasons(one) == {one.values["spice"].note}
    assert "1 captions had special tokens, which were removed" in one.notes


@needs_tools
@pytest.mark.usefixtures("no_meteor")
def test_a_prefix_that_is_scored_is_said() -> None:
    references = {str(n): (f"a dog number {n}",) for n in range(30)}
    captions = {i: f"An image of {text[0]}" for i, text in references.items()}
    notes = score(captions, references).notes
    assert "the captions begin with 'an image of', which is scored as part of them" in notes


@pytest.mark.parametrize(
    ("captions", "references", "message"),
    [
        ({}, {"1": ["A."]}, "no caption to score"),
        ({"2": "A."}, {"1": ["A."]}, "images without references, such as '2'"),
        ({"1": "A."}, {"1": ["A."], "2": []}, "1 images have no reference, such as '2'"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    captions: dict[str, str], references: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(MetricError, match=message):
        score(captions, references)


def leave_one_out() -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the first caption of 500 real COCO images, and the others as references."""
    assert LIBRARY is not None
    with zipfile.ZipFile(LIBRARY / "spice" / "spice-1.0.jar") as jar:
        read = json.loads(jar.read("coco/annotations/captions_val2014.json"))
    by_image: dict[int, list[str]] = {}
    for note in sorted(read["annotations"], key=lambda note: note["id"]):
        by_image.setdefault(note["image_id"], []).append(note["caption"])
    chosen = {str(i): by_image[i] for i in sorted(by_image)[:500]}
    return {i: c[0] for i, c in chosen.items()}, {i: c[1:] for i, c in chosen.items()}


#: What coco-caption gives for `leave_one_out`, measured with the original code.
GOLDEN = {
    "bleu_1": 0.641811,
    "bleu_2": 0.446373,
    "bleu_3": 0.297374,
    "bleu_4": 0.192828,
    "meteor": 0.246490,
    "rouge_l": 0.473388,
    "cider": 0.935529,
}


def test_the_page_tells_the_golden_numbers() -> None:
    page = (Path(__file__).parents[3] / "docs" / "evaluating.md").read_text()
    assert all(f"{value:.6f}".lstrip("0") in page for value in GOLDEN.values())


@needs_tools
@pytest.mark.usefixtures("no_meteor")
def test_real_coco_captions_give_the_golden_numbers() -> None:
    found = published(score(*leave_one_out()))
    for name in GOLDEN.keys() - {"meteor"}:
        assert found[name] == pytest.approx(GOLDEN[name], abs=1e-6)


@needs_tools
@pytest.mark.slow
def test_meteor_with_its_whole_table_gives_the_golden_number() -> None:
    found = published(score(*leave_one_out()))
    assert {name: found[name] for name in GOLDEN} == pytest.approx(GOLDEN, abs=1e-6)
