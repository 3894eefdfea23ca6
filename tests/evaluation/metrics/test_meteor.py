"""METEOR in file mode: a path with a blank, a German machine, odd answers."""

from pathlib import Path

import pytest

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics.meteor import meteor
from fuseprompt.evaluation.metrics.overlap import Words
from tests.evaluation.metrics.tools import fake_java, light_library, needs_tools, real_tools

WORDS = Words(
    {"1": "a dog runs on the grass", "2": "", "3": "a red kite"},
    {"1": ("the dog is running", "a dog runs"), "2": ("a cat",), "3": ("a kite", "red kites fly")},
)


@needs_tools
def test_a_blank_in_the_path_and_a_german_machine_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java, library = real_tools()
    there = meteor(WORDS, java, light_library(tmp_path / "here", library))
    assert there == pytest.approx(0.32314032182352137, abs=0.02)  # Without the real paraphrases.
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=de -Duser.language.format=de")
    assert meteor(WORDS, java, light_library(tmp_path / "with a blank", library)) == there


@needs_tools
def test_captions_without_any_word_score_nothing(tmp_path: Path) -> None:
    java, library = real_tools()
    nothing = Words({"1": "", "2": ""}, {"1": ("a cat",), "2": ("",)})
    assert meteor(nothing, java, light_library(tmp_path / "here", library)) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "Segment 1 score: 0.3\\nFinal score: 0.3",
        "Segment 1 score: 0,3\\nSegment 2 score: 0,3\\nSegment 3 score: 0,3\\nFinal score: 0,3",
        "",
    ],
)
def test_an_answer_that_is_no_score_is_an_error(tmp_path: Path, answer: str) -> None:
    java = fake_java(tmp_path, f"printf '{answer}\\n'")
    with pytest.raises(MetricError, match=r"of 3 captions .* expected 'Final score:'"):
        meteor(WORDS, java, tmp_path)


def test_images_with_fewer_references_repeat_their_last(tmp_path: Path) -> None:
    java = fake_java(tmp_path, f"cp references.txt '{tmp_path}/seen'; exit 1")
    with pytest.raises(MetricError):
        meteor(WORDS, java, tmp_path)
    assert (tmp_path / "seen").read_text().splitlines() == [
        "the dog is running",
        "a dog runs",
        "a cat",
        "a cat",
        "a kite",
        "red kites fly",
    ]
