"""Captions are cut as coco-caption cuts them, whatever characters are in them."""

from pathlib import Path

import pytest

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics import tokens as module
from fuseprompt.evaluation.metrics.base import Unavailable
from fuseprompt.evaluation.metrics.tokens import library_folder, strip_special, tokenize
from tests.evaluation.metrics.tools import LIBRARY, fake_java, needs_tools, real_tools


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("A dog.<|endoftext|>", "A dog. "),
        ("<|startoftext|>a dog</s>", " a dog "),
        ("[CLS] a [MASK] dog [SEP]", "  a   dog  "),
        ("a <b> | dog [sic]", "a <b> | dog [sic]"),
    ],
)
def test_special_tokens_are_no_words(text: str, left: str) -> None:
    assert strip_special(text) == left


def test_the_library_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _name: None)
    found = library_folder()
    assert isinstance(found, Unavailable)
    assert 'pip install "fuseprompt[metrics]"' in found.reason


@needs_tools
def test_every_caption_keeps_its_line() -> None:
    odd = ["\n", "\r", "\v", "\f", "\r\n", "\x1c", "\x85", "\u2028", "\u2029", "\x00", "\ud800"]
    texts = [f"A red{c}kite!" for c in odd]
    rows = tokenize([*texts, "", "...", "The last one."], *real_tools())
    assert rows[: len(odd) - 1] == ["a red kite"] * (len(odd) - 1)
    assert rows[-3:] == ["", "", "the last one"]


@needs_tools
def test_no_character_of_the_basic_plane_moves_a_caption() -> None:
    rows = tokenize([f"{code} kites{chr(code)}fly" for code in range(0x10000)], *real_tools())
    assert [row.split(maxsplit=1)[0] for row in rows] == [str(code) for code in range(0x10000)]


@needs_tools
def test_words_are_those_of_the_original() -> None:
    texts = ["A man's dog (brown) -- isn't it?", "Café, naïve 日本", "Two dogs. A cat."]
    assert tokenize(texts, *real_tools()) == [
        "a man 's dog -lrb- brown -rrb- is n't it",
        "café naïve 日本",
        "two dogs a cat",
    ]


@needs_tools
def test_two_thousand_words_are_one_line() -> None:
    assert tokenize(["dog " * 2000, "cat"], *real_tools()) == [" ".join(["dog"] * 2000), "cat"]


@needs_tools
def test_nothing_is_written_beside_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    java, library = real_tools()
    folder = library / "tokenizer"
    before = {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]}
    tokenize(["a dog"], java, library)
    assert {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]} == before


@pytest.mark.skipif(isinstance(LIBRARY, Unavailable), reason="needs pycocoevalcap")
def test_a_lost_line_is_an_error_and_no_shift(tmp_path: Path) -> None:
    java = fake_java(tmp_path, "echo only one")
    with pytest.raises(MetricError, match="gave 1 lines for 2 captions"):
        tokenize(["a", "b"], java, tmp_path)
