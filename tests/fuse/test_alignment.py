"""Words, alignment, split and merge over hostile text and four families of tokenizers."""

from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fuseprompt.errors import AlignmentError
from fuseprompt.fuse.alignment import (
    align,
    default_words,
    merge,
    split,
    word_spans,
)
from tests.reference.alignment import word_parts
from tests.text.tiny import byte_bpe, end_of_word_bpe, meta_bpe, word_piece

FACTORIES = [byte_bpe, lambda: byte_bpe(600), word_piece, end_of_word_bpe, meta_bpe]
HOSTILE = [
    "",
    " ",
    "\n\n",
    "a",
    "  two  leading and double  blanks ",
    "tabs\tand\nnew\r\nlines\n",
    "emoji 😀👩‍👩‍👧 here🎉",
    "cafe\u0301 na\u00efve A\u030a",
    "中文字符 と 日本語",
    "שלום עולם مرحبا",
    "\u2581meta \u0120byte",
    "<|endoftext|> in <unk> text [SEP] </s>",
    "x" * 45,
    " misunderstandings" * 3,
    "zero\u200bwidth\u00a0blank \ufeffbom",
    "\x00control\x07 chars",
]
TEXTS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=30),
    st.lists(st.sampled_from([*HOSTILE, " the", " extraordinary", "dog", " "]), max_size=4).map(
        "".join
    ),
)
PAIRS = st.tuples(st.sampled_from(FACTORIES), st.sampled_from(FACTORIES))


def at_most(count: int):
    """Return the rule that neither model may have more tokens."""
    return lambda k, l: max(k, l) <= count  # noqa: E741


def assert_partition(parts, length, num_primary, num_secondary):
    """Check that parts follow each other and cover all characters and tokens."""
    for field, total in (("chars", length), ("primary", num_primary), ("secondary", num_secondary)):
        edges = [getattr(part, field) for part in parts]
        assert [e[0] for e in edges] == [0, *(e[1] for e in edges[:-1])]
        assert edges[-1][1] == total


def test_assert_partition_notices_a_gap():
    parts = align("a b", [(0, 1), (2, 3)], [(0, 1), (2, 3)]).parts
    assert_partition(parts, 3, 2, 2)
    with pytest.raises(AssertionError):
        assert_partition(parts[1:], 3, 2, 2)
    with pytest.raises(AssertionError):
        assert_partition(parts, 3, 2, 3)


SPANS = st.lists(st.sampled_from([(0, 2), (3, 5), (6, 8), (2, 5), (0, 5), (3, 8)]), max_size=5)


@given(ours=SPANS, theirs=SPANS)
@example(ours=[(0, 2), (3, 5), (0, 2), (6, 8)], theirs=[(0, 2), (3, 5), (6, 8)])
def test_tokens_that_go_back_or_overlap_are_in_one_part_with_those_between(ours, theirs):
    found = align("ab cd ef", ours, theirs).parts
    expected = word_parts("ab cd ef", ours, theirs)
    assert [(p.chars, p.primary, p.secondary) for p in found] == expected
    assert_partition(found, 8, len(ours), len(theirs))


@given(text=TEXTS, pair=PAIRS)
def test_parts_are_those_of_the_reference(text, pair):
    ours, theirs = (f().encode_with_offsets(text)[1] for f in pair)
    found = align(text, ours, theirs).parts
    expected = word_parts(text, ours, theirs)
    assert [(p.chars, p.primary, p.secondary) for p in found] == expected
    if text:
        assert_partition(found, len(text), len(ours), len(theirs))


@given(text=TEXTS, pair=PAIRS, max_tokens=st.integers(1, 5))
def test_cutting_loses_nothing_and_cuts_where_it_can(text, pair, max_tokens):
    ours, theirs = (f().encode_with_offsets(text)[1] for f in pair)
    whole = align(text, ours, theirs)
    cut = whole.cut(at_most(max_tokens))
    if text:
        assert_partition(cut.parts, len(text), len(ours), len(theirs))
    short = [p for p in whole.parts if max(p.counts) <= max_tokens]
    assert set(short) <= set(cut.parts)
    assert cut.cut(at_most(max_tokens)) == cut
    if ours == theirs and all(a[1] <= b[0] for a, b in pairwise(ours)):
        assert all(p.counts[0] <= max_tokens for p in cut.parts)


@given(text=TEXTS, pair=PAIRS)
def test_split_and_merge_are_inverse(text, pair):
    ours, theirs = (f().encode_with_offsets(text)[1] for f in pair)
    alignment = align(text, ours, theirs)
    for counts in (
        [p.counts[0] for p in alignment.parts],
        [p.counts[1] for p in alignment.parts],
    ):
        rows = torch.arange(3.0 * sum(counts)).reshape(-1, 3)
        words = split(rows, counts)
        assert [w.shape for w in words] == [(1, 3, n) for n in counts]
        if words:
            assert torch.equal(merge(words), rows)


def test_fox_of_figure_1():
    """The paper's words: 'qui ck' meets 'q uick', 'j umps' meets 'jump s'."""
    text = "the quick jumps"
    ours = [(0, 3), (3, 7), (7, 9), (9, 11), (11, 15)]
    theirs = [(0, 3), (4, 5), (5, 9), (10, 14), (14, 15)]
    parts = align(text, ours, theirs).parts
    assert [(text[slice(*p.chars)], *p.counts) for p in parts] == [
        ("the", 1, 1),
        (" quick", 2, 2),
        (" jumps", 2, 2),
    ]


def test_a_token_that_spans_words_joins_them():
    text = "New York is"
    ours, theirs = [(0, 8), (8, 11)], [(0, 3), (3, 8), (8, 11)]
    assert [text[slice(*p.chars)] for p in align(text, ours, theirs).parts] == ["New York", " is"]
    assert len(align(text, theirs, theirs).parts) == 3


def test_long_word_is_cut_at_common_offsets_only():
    text = "abcdefgh"
    ours = [(i, i + 1) for i in range(8)]
    theirs = [(0, 3), (3, 5), (5, 8)]
    cut = align(text, ours, theirs).cut(at_most(4)).parts
    assert [text[slice(*p.chars)] for p in cut] == ["abc", "de", "fgh"]
    halves = align(text, ours, [(0, 4), (4, 8)]).cut(at_most(4)).parts
    assert [p.secondary for p in halves] == [(0, 1), (1, 2)]
    assert align(text, ours, [(0, 8)]).cut(at_most(4)).parts == align(text, ours, [(0, 8)]).parts


def test_errors_say_what_to_do():
    with pytest.raises(AlignmentError, match=r"primary span \(0, 5\) for a text of 3 characters"):
        align("abc", [(0, 5)], [])
    with pytest.raises(AlignmentError, match="add up to 3 for 2 rows"):
        split(torch.zeros(2, 4), [1, 2])
    with pytest.raises(AlignmentError, match="no parts"):
        merge([])


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
