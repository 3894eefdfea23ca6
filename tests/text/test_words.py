"""Words of a text and the list that ships."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseprompt.text.words import count_words, default_words, in_running_text, word_spans
from tests.text.tiny import byte_bpe, end_of_word_bpe, meta_bpe, word_piece


@given(st.text())
def test_words_cover_the_text_without_gap(text):
    spans = word_spans(text)
    assert "".join(text[start:end] for start, end in spans) == text
    assert all(start < end for start, end in spans)
    assert len(spans) == (len(text.split()) or bool(text))


def test_white_space_goes_to_the_word_after_it():
    text = "\t a\n\nb  c \n"
    assert [text[s:e] for s, e in word_spans(text)] == ["\t a", "\n\nb", "  c \n"]
    assert word_spans("") == []
    assert word_spans(" \n") == [(0, 2)]


def test_shipped_list_is_sixty_thousand_plain_words():
    words = default_words()
    assert len(words) == len(set(words)) == 60_000
    assert list(words) == sorted(words)
    assert all(w.isalpha() and w.isascii() for w in words)
    assert {"dog", "Paris", "extraordinary", "running"} <= set(words)


def test_counting_and_blanks():
    assert count_words(["b a b", "c\tb a"]) == {"b": 3, "a": 2, "c": 1}
    assert in_running_text("dog") == " dog"


HARD = [
    "don't",
    "(see",
    "U.S.",
    "1,200",
    "e\u0301\U0001f600",
    "end.",
    "\u4e2d\u6587",
    "<|endoftext|>",
    "x" * 50,
]


@pytest.mark.parametrize("factory", [byte_bpe, word_piece, end_of_word_bpe, meta_bpe])
def test_words_in_blocks_get_the_ids_they_have_in_running_text(factory):
    """Blocks of plain words, of hard ones, and tokenizers that know no words."""
    tokenizer = factory()
    plain = [word for word in default_words()[::41] if word != "a"]
    for words in (plain, HARD, [*plain[:700], *HARD]):
        singly = []
        for word in words:
            ids, spans = tokenizer.encode_with_offsets(f"a {word}")
            singly.append([i for i, (_, end) in zip(ids, spans, strict=True) if end > 1])
        assert tokenizer.encode_words(words) == singly
    assert tokenizer.encode_words([]) == []
