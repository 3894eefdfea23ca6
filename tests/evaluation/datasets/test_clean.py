"""Captions on one line: every kind of line break, halves of surrogates, composed letters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseprompt.evaluation.datasets.base import clean_caption

BREAKS = ("\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")


@pytest.mark.parametrize("line_break", BREAKS)
def test_every_line_break_becomes_a_blank(line_break: str) -> None:
    assert clean_caption(f" a kite{line_break}over a pond. ") == "a kite over a pond."


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("", ""),
        (" \t\u2028 ", ""),
        ("A  GREEN\tdoor", "A GREEN door"),
        ("cafe\u0301", "caf\u00e9"),
        ("\ufeffa kite", "a kite"),
        ("a\x00b\x07c", "a b c"),
        ("half \ud83d emoji", "half \ufffd emoji"),
        ("\U0001f469\u200d\U0001f680 flies", "\U0001f469\u200d\U0001f680 flies"),
    ],
)
def test_what_else_is_cleaned(text: str, clean: str) -> None:
    assert clean_caption(text) == clean


@given(st.text(st.characters(codec=None)))
def test_a_clean_caption_is_one_line_of_utf_8_and_stays_as_it_is(text: str) -> None:
    clean = clean_caption(text)
    clean.encode("utf-8")
    assert len(clean.splitlines()) <= 1
    assert clean_caption(clean) == clean
