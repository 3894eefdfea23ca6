"""The study of tones: the rule that chose the weight, the judges' labels, the tables.

The lexicons are packages that a test machine does not have; a small one stands in.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.journal import Journal
from benchmarks.photos import sentiment
from benchmarks.photos.sentiment import meets_rule
from benchmarks.photos.sentiment_judges import label, most_frequent_word, split_possessives

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

TONES = ("positive", "negative", "neutral")


class FakeJudges:
    """Two lexicons with two words."""

    def judge(self, text: str) -> dict[str, Any]:
        words = [word for word in text.rstrip(".").split() if word in ("lovely", "grim")]
        tone = {"lovely": "positive", "grim": "negative"}.get(words[0] if words else "", "neutral")
        known = tone if words else None
        return {"vader": tone, "vader_split": tone, "afinn": known, "words": words}


def rows(num_pictures: int, *, wrong: int = 0, image: float = 0.4) -> list[dict[str, Any]]:
    """Return a journal whose toned captions have an image distance, some of them a wrong tone."""
    adjective = {"positive": "lovely ", "negative": "grim ", "neutral": ""}
    made = [
        {
            "picture": str(i),
            "tone": tone,
            "weight": 1.0,
            "text": f"A {adjective[tone]}cat.",
            "classified": tone,
            "fluency": 2.0 if tone == "neutral" else 2.5,
            "image": 0.4 if tone == "neutral" else image,
            "sentiment": 0.1,
        }
        for i in range(num_pictures)
        for tone in TONES
    ]
    for row in [row for row in made if row["tone"] == "positive"][:wrong]:
        row["classified"] = "neutral"
    return made


@pytest.mark.parametrize(
    ("wrong", "image", "enough"),
    [(0, 0.4, True), (1, 0.4, True), (2, 0.4, False), (0, 0.43, True), (0, 0.45, False)],
)
def test_a_weight_is_enough_if_tones_are_right_and_pictures_not_much_farther(
    wrong: int, image: float, enough: bool
) -> None:
    assert meets_rule(rows(10, wrong=wrong, image=image)) is enough


@pytest.mark.parametrize(
    ("score", "want"),
    [(0.05, "neutral"), (0.06, "positive"), (-0.05, "neutral"), (-0.06, "negative")],
)
def test_a_score_within_the_threshold_is_neutral(score: float, want: str) -> None:
    assert label(score, 0.05) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("The enemy's flag.", "The enemy 's flag."),
        ("It's a dog's life", "It 's a dog 's life"),
        ("'so it goes' ends", "'so it goes' ends"),
    ],
)
def test_possessives_are_words_of_their_own(text: str, want: str) -> None:
    assert split_possessives(text) == want


def test_the_most_frequent_word_counts_captions_and_not_occurrences() -> None:
    assert most_frequent_word([["fine", "fine", "fine"], ["good"], ["good"], []]) == ("good", 0.5)
    assert most_frequent_word([["b"], ["a"]]) == ("a", 0.5)
    assert most_frequent_word([[], []]) == ("", 0.0)


def test_the_report_compares_with_the_neutral_caption_of_the_same_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sentiment, "Judges", FakeJudges)
    sentiment.report(rows(3, image=0.42)[:-1])  # The third picture lacks its neutral caption.
    printed = capsys.readouterr().out.splitlines()
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    assert lines[0] == {"pictures": 2, "weights": [1.0]}
    assert [line["captions"] for line in lines[1:4]] == [2, 2, 2]
    assert (lines[1]["vader"], lines[1]["afinn"], lines[1]["word"]) == (1.0, 1.0, "lovely")
    assert (lines[1]["share"], lines[3]["afinn"], lines[3]["afinn_knows"]) == (1.0, None, 0)
    image, fluency = lines[4:6]
    want = {"mean": 0.02, "low": 0.02, "high": 0.02}
    assert image == {"image, positive - neutral": want, "relative": 0.05}
    assert fluency["fluency, positive - neutral"]["mean"] == 0.5
    assert len([line for line in printed if line.startswith("|")]) == 6


def test_the_committed_journal_makes_the_tables_of_the_page(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sentiment, "Judges", FakeJudges)
    page = (RESULTS / "sentiment.md").read_text("utf-8")
    lines = page.replace("| .", "| 0.").replace("[.", "[0.").replace(", .", ", 0.").splitlines()
    sentiment.report(list(Journal(RESULTS / "sentiment.jsonl").rows.values()))
    printed = capsys.readouterr().out.splitlines()
    found = [json.loads(line) for line in printed[:8]]
    assert found[0] == {"pictures": 60, "weights": [3.0]}
    for line in found[1:4]:
        begin = f"| {line['tone']} | {60 * line['classifier']:.0f} of 60 |"
        (row,) = [row for row in lines if row.startswith(begin)]
        assert f"| {line['fluency']:.2f} | {line['image']:.3f} |" in row
    for image, fluency in (found[4:6], found[6:8]):
        name = f"{next(iter(image)).partition(', ')[2]}"
        shown = "| {} | {} | {:.1f} % | {} |".format(
            name,
            "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**image[f"image, {name}"]),
            100 * image["relative"],
            "{mean:.2f} [{low:.2f}, {high:.2f}]".format(**fluency[f"fluency, {name}"]),
        )
        assert shown in lines
    assert len(printed) == 8 + 12
    assert set(printed[8:]) <= set(lines)
