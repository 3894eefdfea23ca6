"""Each sentiment and each domain is scored by itself; shards are one set."""

from dataclasses import replace
from pathlib import Path

import pytest

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.datasets import read_dataset
from fuseprompt.evaluation.datasets.base import Item, make_dataset
from fuseprompt.evaluation.metrics import score as module
from fuseprompt.evaluation.metrics.base import Scores, Scoring
from fuseprompt.evaluation.metrics.predictions import Prediction
from fuseprompt.evaluation.metrics.score import score_parts
from tests.evaluation.datasets import fixtures


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, str], dict[str, object]]]:
    """Keep what was to be scored, instead of scoring it."""
    seen: list[tuple[dict[str, str], dict[str, object]]] = []

    def note(captions: dict[str, str], people: dict[str, object], **_: object) -> Scores:
        seen.append((captions, people))
        return Scores(len(people), 1.0, {})

    monkeypatch.setattr(module, "score", note)
    return seen


def captions(*ids: str, sentiment: str = "") -> list[Prediction]:
    return [Prediction(f"line {i}", (i,), f"Caption {i}.", sentiment) for i in ids]


def test_sentiments_have_references_of_their_own(tmp_path: Path, asked) -> None:
    dataset = read_dataset("senticap", fixtures.write_senticap(tmp_path), split="test")
    found = captions("7", sentiment="positive") + captions("7", "12", sentiment="negative")
    assert list(score_parts(found, dataset)) == ["negative", "positive"]
    (negative, of_negative), (positive, of_positive) = asked
    assert (set(negative), set(positive)) == ({"7", "12"}, {"7"})
    assert of_negative["7"] == ("a torn kite.",)
    assert of_positive["7"] == ("a lovely kite.", "a fine kite.")


def test_domains_come_after_the_whole(tmp_path: Path, asked) -> None:
    dataset = read_dataset("nocaps", fixtures.write_nocaps(tmp_path))
    told: list[str] = []
    scoring = Scoring(by_domain=True, distinct=True)
    found = score_parts(captions("0", "1"), dataset, scoring, on_metric=told.append)
    assert list(found) == ["", "in-domain", "near-domain"]  # None of the third has a caption.
    assert [set(people) for _, people in asked] == [{"0", "1", "2"}, {"1"}, {"0"}]
    assert told == ["distinct", "in-domain: distinct", "near-domain: distinct"]
    assert found[""].values["distinct_1"].value == pytest.approx(3 / 4)


def test_what_is_removed_from_captions_can_be_told(asked) -> None:
    """Metrics get captions as they were written, and say what they leave out; measures do not."""
    dataset = make_dataset("folder", "all", items=[Item("1", Path("1.jpg"), ("A dog.",))])
    written = Prediction("line 1", ("1",), "A dog\u2028runs.<|endoftext|>")
    found = score_parts([written], dataset, Scoring(distinct=True))
    assert asked[0][0] == {"1": "A dog\u2028runs.<|endoftext|>"}
    assert found[""].values["distinct_1"].value == 1.0
    plain = replace(written, caption="A dog dog.<s>")
    found = score_parts([plain], dataset, Scoring(distinct=True))
    assert found[""].values["distinct_1"].value == pytest.approx(2 / 3)


def test_images_without_references_are_left_out_and_told(asked) -> None:
    items = [Item("1", Path("1.jpg"), ("A dog.",)), Item("2", Path("2.jpg"))]
    dataset = make_dataset("folder", "all", items=items)
    found = score_parts(captions("1", "2"), dataset)
    assert asked == [({"1": "Caption 1."}, {"1": ("A dog.",)})]
    assert found[""].notes[0] == "1 images have no captions by people and are left out"


@pytest.mark.parametrize(
    ("found", "references", "message"),
    [
        ([], ("A dog.",), "There is no caption to score"),
        (captions("1"), (), "no captions by people"),
        (captions("3"), ("A dog.",), "not in the split"),
    ],
)
def test_what_cannot_be_scored_is_said(
    found: list[Prediction], references: tuple[str, ...], message: str
) -> None:
    dataset = make_dataset("folder", "all", items=[Item("1", Path("1.jpg"), references)])
    with pytest.raises(MetricError, match=message):
        score_parts(found, dataset)
    with_sentiment = make_dataset(
        "x", "all", items=[Item("1", Path("1.jpg"), references, "positive")]
    )
    if not found:
        with pytest.raises(MetricError, match="no caption for the sentiment positive"):
            score_parts(found, with_sentiment)
