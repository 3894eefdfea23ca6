"""The retokenisation table equals encoding the whole text, on its fast and its slow path."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Rust

from fuseprompt import cache
from fuseprompt.offline.manifest import offline_folder
from fuseprompt.text.retokenize import (
    PaddedIds,
    RetokenizationTable,
    Verdict,
    concatenate,
    distinct_rows,
    last_word,
)
from fuseprompt.text.token_classes import RoundTrip
from fuseprompt.text.tokenizer import Tokenizer, is_word_initial
from tests.text.tiny import LINES, byte_bpe, meta_bpe, word_piece
from tests.tiny import bert_tokenizer, clip_tokenizer, gpt2_tokenizer, llama_tokenizer

GPT2, LLAMA, BERT, CLIP = (
    Tokenizer.from_hf(t())
    for t in (gpt2_tokenizer, llama_tokenizer, bert_tokenizer, clip_tokenizer)
)
PAIRS = {
    "bpe-wordpiece": RetokenizationTable(GPT2, BERT),
    "bpe-clip": RetokenizationTable(GPT2, CLIP),
    "bpe-bpe": RetokenizationTable(GPT2, LLAMA),
    "small-bpe-large-bpe": RetokenizationTable(byte_bpe(300), byte_bpe(700)),
    "wordpiece-bpe": RetokenizationTable(word_piece(), GPT2),
    "wordpiece-clip": RetokenizationTable(word_piece(), CLIP),
}
# Merges of the meta BPE cross blanks, so appending ids is not encoding the text.
CROSSING = RetokenizationTable(GPT2, meta_bpe(600))

WORDS = sorted({w for line in LINES for w in line.split()})
CONTEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "\n",
            "a",
            "An image of",
            "An image of ",
            "a  ",
            "the end.",
            "don",
            "(",
            "x\n",
            "a \n b",
        ]
    ),
    st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join),
    st.lists(
        st.sampled_from([*WORDS, " ", "\n", "\t", "...", "é", "'", "s", "-", "\u00a0", "中"]),
        max_size=6,
    ).map("".join),
    st.text(max_size=8),
)


def tokens_to_append(table: RetokenizationTable) -> torch.Tensor:
    """Return every primary token but the special ones."""
    primary = table.primary
    return torch.tensor([i for i in range(primary.vocab_size) if i not in primary.special_ids])


def expected(table: RetokenizationTable, text: str, token: int) -> list[int]:
    """Return the ids with special tokens of a whole text."""
    secondary = table.secondary
    return secondary.add_special_tokens(secondary.encode(text + table.primary.token_texts[token]))


def check_every_token(table: RetokenizationTable, texts: list[str]) -> float:
    """Compare all tokens after all texts with whole encodings; return the share by table."""
    tokens = tokens_to_append(table)
    rows = torch.arange(len(texts)).repeat_interleave(len(tokens))
    every = tokens.repeat(len(texts))
    ids, share = table.extend(texts, rows, every)
    got = ids.to_lists()
    for i, (row, token) in enumerate(zip(rows.tolist(), every.tolist(), strict=True)):
        want = expected(table, texts[row], token)
        assert got[i] == want, (texts[row], table.primary.token_texts[token])
    return share


@pytest.mark.parametrize("pair", PAIRS)
@settings(max_examples=15)
@given(texts=st.lists(CONTEXTS, min_size=1, max_size=3))
@example(texts=["", "An image of", "An image of ", "the end.", 'He said "no"', "a\n", "\n\nb"])
@example(texts=["[SEP", "<|endoftext|", "a [SEP", "end [", "un", "isn't", "  double  blanks"])
def test_extend_is_encoding_the_whole_text(pair: str, texts: list[str]) -> None:
    check_every_token(PAIRS[pair], texts)


@pytest.mark.parametrize("pair", PAIRS)
def test_most_candidates_take_the_fast_path(pair: str) -> None:
    table = PAIRS[pair]
    assert table.check() == Verdict(1.0, 1.0)
    words = torch.nonzero(table.word_initial).flatten()
    _, share = table.extend(["An image of"], torch.zeros(len(words), dtype=torch.long), words)
    # The tiny CLIP vocabulary lacks some letters, and has no piece at all for a word made of them.
    written = (table.pieces.lengths[words] > 0).float().mean().item()
    assert share == pytest.approx(written)
    assert share > 0.85


def test_a_tokenizer_that_merges_across_blanks_fails_the_check_and_stays_exact() -> None:
    assert CROSSING.check().word_initial < 1.0
    assert CROSSING.verdict == CROSSING.check()
    share = check_every_token(CROSSING, ["An image of", "a photo of the", "", "on the "])
    assert share == 0.0


def with_added(tokenizer: Tokenizer, text: str, **how: bool) -> Tokenizer:
    """Return a tokenizer with one more token, as people add them."""
    rust = Rust.from_str(tokenizer._backend.to_str())
    rust.add_tokens([AddedToken(text, **how)])
    return Tokenizer(rust, name=f"{tokenizer.name} and {text!r}")


@pytest.mark.parametrize(
    ("secondary", "contexts", "fails"),
    [
        (with_added(BERT, "red fox"), ["the red", "the red f", "a red fox"], (True, True)),
        (with_added(CLIP, "New York"), ["in New", "in new", "in New Yor"], (False, True)),
        (with_added(LLAMA, "fox", rstrip=True), ["a fox", "the red fo"], (True, False)),
        (with_added(GPT2, "dog", lstrip=True, rstrip=True), ["a dog", "a do"], (True, False)),
        (with_added(LLAMA, "fox", single_word=True), ["a fox", "a fo", "-fox"], (False, False)),
        (with_added(LLAMA, "  ", normalized=False), ["a", "a  ", "a  b"], (False, False)),
    ],
)
def test_tokens_added_with_blanks_or_stripping_are_in_the_check(
    secondary: Tokenizer, contexts: list[str], fails: tuple[bool, bool]
) -> None:
    """They change what stands before the last word; random words do not draw them."""
    table = RetokenizationTable(byte_bpe(700), secondary)
    verdict = table.verdict
    assert (verdict.word_initial < 1.0, verdict.word_internal < 1.0) == fails
    check_every_token(table, contexts)


def test_the_round_trip_knows_an_added_token_with_a_blank() -> None:
    """The longer text reads as one token: it is not the ids that were chosen."""
    tokenizer = with_added(byte_bpe(700), "red fox")
    before, token = tokenizer.encode("a red"), tokenizer.encode("a fox")[-1]
    assert tokenizer.token_texts[token] == " fox"
    row, trip = torch.tensor([0]), RoundTrip(tokenizer)
    for text, ids, survives in (
        ("a red", before, False),
        ("a dog", tokenizer.encode("a dog"), True),
    ):
        rows = PaddedIds.from_lists([ids])
        assert trip.survives([text], rows, row, torch.tensor([token])).tolist() == [survives]


def test_the_comparison_itself_notices_a_wrong_id() -> None:
    table = RetokenizationTable(GPT2, BERT)
    assert table.verdict == Verdict(1.0, 1.0)
    table.pieces.ids[torch.nonzero(table.word_initial)[:5], 0] += 1
    assert table.check().word_initial < 1.0
    with pytest.raises(AssertionError):
        check_every_token(table, ["An image of"])


def test_a_wrong_continuation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = RetokenizationTable(GPT2, BERT)
    right = RetokenizationTable.encode_words

    def wrong(self: RetokenizationTable, words: list[str]) -> list[list[int]]:
        rows = zip(words, right(self, words), strict=True)
        return [[*ids[:-1], ids[-1] + 1] if word.endswith("s") else ids for word, ids in rows]

    monkeypatch.setattr(RetokenizationTable, "encode_words", wrong)
    verdict = table.check()
    assert verdict.word_initial == 1.0
    assert 0.5 < verdict.word_internal < 1.0


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Count the checks, with no note of an earlier one."""
    calls: list[int] = []
    monkeypatch.setattr(cache, "notes_dir", lambda: tmp_path / "notes")
    check = RetokenizationTable.check

    def counted(self: RetokenizationTable) -> Verdict:
        calls.append(1)
        return check(self, num_pairs=300)

    monkeypatch.setattr(RetokenizationTable, "check", counted)
    return calls


def test_a_pair_is_checked_once_on_a_machine(checks: list[int]) -> None:
    first = RetokenizationTable(GPT2, BERT).verdict
    assert checks == [1]
    assert RetokenizationTable(GPT2, BERT).verdict == first
    assert checks == [1]
    assert RetokenizationTable(GPT2, meta_bpe(600)).verdict.word_initial < 1.0
    assert RetokenizationTable(GPT2, meta_bpe(600)).verdict.word_initial < 1.0
    assert checks == [1, 1]


@pytest.mark.parametrize("text", ["", "{}", '{"key": 1}', "damaged"])
def test_a_note_that_cannot_be_read_means_checking_again(
    checks: list[int], tmp_path: Path, text: str
) -> None:
    want = RetokenizationTable(GPT2, BERT).verdict
    (file,) = (tmp_path / "notes").iterdir()
    file.write_text(text)
    assert RetokenizationTable(GPT2, BERT).verdict == want
    file.write_text(file.read_text().replace("word_initial", "old_words"))
    assert RetokenizationTable(GPT2, BERT).verdict == want
    assert checks == [1, 1, 1]


def test_a_cache_that_cannot_be_written_means_checking_each_time(
    checks: list[int], tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("no folder")
    verdicts = [RetokenizationTable(GPT2, BERT).verdict for _ in range(2)]
    assert verdicts == [Verdict(1.0, 1.0)] * 2
    assert checks == [1, 1]


def test_what_fails_takes_the_exact_path() -> None:
    table = RetokenizationTable(GPT2, BERT)
    new = int(torch.nonzero(table.word_initial)[0])
    joining = int(torch.nonzero(table.word_internal)[0])
    rows, tokens = torch.zeros(2, dtype=torch.long), torch.tensor([new, joining])
    for verdict, share in (
        (Verdict(0.9, 1.0), 0.5),
        (Verdict(1.0, 0.9), 0.5),
        (Verdict(0.0, 0.0), 0),
    ):
        table = RetokenizationTable(GPT2, BERT)
        table.__dict__["verdict"] = verdict
        ids, by_table = table.extend(["An image of a house"], rows, tokens)
        assert by_table == share
        assert ids.to_lists() == [
            expected(table, "An image of a house", t) for t in tokens.tolist()
        ]


def test_check_repeats_itself() -> None:
    assert CROSSING.check(num_pairs=300, seed=3) == CROSSING.check(num_pairs=300, seed=3)


def test_a_primary_without_new_words_has_nothing_to_check() -> None:
    table = RetokenizationTable(byte_bpe(257), BERT)
    assert not table.word_initial.any()
    assert table.check() == Verdict(1.0, 1.0)
    check_every_token(table, ["An image", ""])


def test_nothing_to_append_to_gives_no_rows() -> None:
    none = torch.zeros(0, dtype=torch.long)
    ids, share = PAIRS["bpe-wordpiece"].extend([], none, none)
    assert len(ids) == 0
    assert share == 0.0


def test_pieces_of_tokens_that_start_no_word_are_empty() -> None:
    table = PAIRS["bpe-wordpiece"]
    assert torch.equal(table.pieces.lengths > 0, table.word_initial)
    token = GPT2.encode("a the")[-1]
    assert table.pieces.to_lists()[token] == BERT.encode("the")


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 9), max_size=5), st.lists(st.integers(0, 9), max_size=5)),
        max_size=6,
    )
)
def test_concatenate_joins_rows(rows: list[tuple[list[int], list[int]]]) -> None:
    left = PaddedIds.from_lists([a for a, _ in rows])
    right = PaddedIds.from_lists([b for _, b in rows])
    joined = concatenate(left, right)
    assert joined.to_lists() == [a + b for a, b in rows]
    assert joined.ids.shape[1] == max((len(a) + len(b) for a, b in rows), default=0)


def test_concatenate_leaves_zeros_beyond_each_row() -> None:
    joined = concatenate(PaddedIds.from_lists([[1, 2], []]), PaddedIds.from_lists([[3], [4, 5]]))
    assert joined.ids.tolist() == [[1, 2, 3], [4, 5, 0]]


def test_padded_rows_can_be_chosen() -> None:
    batch = PaddedIds.from_lists([[1], [2, 3], []])
    assert len(batch) == 3
    assert batch[torch.tensor([2, 1])].to_lists() == [[], [2, 3]]


@given(st.integers(0, 4), st.integers(0, 30), st.integers(0, 2**31))
def test_distinct_rows_are_each_there_once(width: int, count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(3, (count, width), generator=generator)
    distinct, index = distinct_rows(rows)
    assert torch.equal(distinct[index], rows)
    assert len(distinct) == len({tuple(row) for row in rows.tolist()})


def test_rows_that_share_a_number_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randint", lambda *args, **more: torch.ones(2, dtype=torch.long))
    rows = torch.tensor([[1, 2], [2, 1], [1, 2]])
    distinct, index = distinct_rows(rows)
    assert torch.equal(distinct[index], rows)
    assert len(distinct) == 2


def test_last_words_are_forgotten_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseprompt.text.retokenize._MOST_WORDS", 5)
    table = RetokenizationTable(GPT2, BERT)
    want = {w: BERT.encode(w) for w in ("fox", "dogs", "cat", "two", "river", "night", "park")}
    for words in (["fox", "dogs", "cat"], ["cat", "two", "river", "night"], [*want]):
        assert table.encode_words(words) == [want[w] for w in words]
        assert len(table._words) <= max(5, len(words))


@pytest.mark.parametrize(
    ("text", "word"),
    [("", ""), ("a ", ""), ("cat", "cat"), ("a cat", " cat"), ("a\ncat", "\ncat"), ("a  b", " b")],
)
def test_last_word(text: str, word: str) -> None:
    assert last_word(text) == word


@pytest.mark.parametrize(
    ("text", "new"),
    [
        (" cat", True),
        (" ,", True),
        ("cat", False),
        (" ", False),
        ("  cat", False),
        (" caf\u00e9", False),
        (" a\n", False),
        ("", False),
        (" a b", True),
    ],
)
def test_is_word_initial(text: str, new: bool) -> None:
    assert is_word_initial(text) is new


@pytest.mark.offline
@pytest.mark.parametrize("secondary", ["offline:sentence", "offline:sentence-bpe"])
def test_the_offline_pairs_are_exact_and_fast(secondary: str) -> None:
    table = RetokenizationTable(
        *(Tokenizer.from_pretrained(offline_folder(i)) for i in ("offline:lm", secondary))
    )
    assert table.check() == Verdict(1.0, 1.0)
    texts = [
        *LINES[:15],
        "An image of",
        "",
        "He said:",
        'a "red',
        "x ",
        "caf\u00e9",
        "U.S",
        "[SEP",
        "1",
    ]
    draw = random.Random(0)
    vocab = [i for i, t in enumerate(table.primary.token_texts) if t]
    tokens = torch.tensor(draw.choices(vocab, k=3000))
    rows = torch.tensor(draw.choices(range(len(texts)), k=3000))
    ids, _ = table.extend(texts, rows, tokens)
    for row, token, got in zip(rows.tolist(), tokens.tolist(), ids.to_lists(), strict=True):
        assert got == expected(table, texts[row], token), (texts[row], token)
    words = torch.nonzero(table.word_initial).flatten()
    _, share = table.extend(texts[:15], torch.zeros(len(words), dtype=torch.long), words)
    assert share >= 0.99
