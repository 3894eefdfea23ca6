"""The round trip by tables equals encoding every longer text, whatever the tokenizer."""

import pytest
import torch

from fuseprompt.offline.manifest import offline_folder
from fuseprompt.text.retokenize import PaddedIds, Verdict
from fuseprompt.text.token_classes import (
    _READ_BACK,
    _READ_OTHERWISE,
    RoundTrip,
    TokenClasses,
)
from fuseprompt.text.tokenizer import Tokenizer
from tests.text.tiny import LINES, byte_bpe, end_of_word_bpe, meta_bpe, word_piece

TOKENIZERS = {
    "byte-bpe": byte_bpe(),
    "large-byte-bpe": byte_bpe(700),
    "word-piece": word_piece(),
    "end-of-word-bpe": end_of_word_bpe(),
    "meta-bpe": meta_bpe(600),  # its merges cross blanks
}
TEXTS = [
    *LINES[:5],
    "An image of",
    "",
    "a ",
    "un",
    "isn't",
    "x\n",
    "two  blanks",
    "caf\u00e9",
    "(a",
]


def compare(trip: RoundTrip, texts: list[str], tokens: list[int]) -> float:
    """Assert that every answer is right and return the share of tokens that survive."""
    tokenizer = trip.tokenizer
    ids = tokenizer.encode_batch(texts)
    rows = torch.arange(len(texts)).repeat_interleave(len(tokens))
    asked = torch.tensor(tokens).repeat(len(texts))
    got = trip.survives(texts, PaddedIds.from_lists(ids), rows, asked)
    longer = [texts[r] + tokenizer.token_texts[t] for r, t in zip(rows, asked, strict=True)]
    want = [
        read == [*ids[row], token]
        for read, row, token in zip(
            tokenizer.encode_batch(longer), rows.tolist(), asked.tolist(), strict=True
        )
    ]
    assert got.tolist() == want
    return sum(want) / len(want)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_token_after_every_text(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    texts = [t for t in TEXTS if tokenizer.decode(tokenizer.encode(t)) == t]
    tokens = [i for i, t in enumerate(tokenizer.token_texts) if t]
    assert texts
    share = compare(RoundTrip(tokenizer), texts, tokens)
    assert share < 1.0


def test_the_comparison_itself_notices_a_wrong_answer() -> None:
    trip = RoundTrip(byte_bpe())
    compare(trip, ["An image of"], torch.nonzero(trip.table.word_initial).flatten().tolist())
    wrong = torch.nonzero(trip._known == _READ_BACK)[0]
    trip._known[wrong] = _READ_OTHERWISE
    with pytest.raises(AssertionError):
        compare(trip, ["An image of"], wrong.tolist())


def test_what_the_check_does_not_trust_is_encoded_as_a_whole_text() -> None:
    for verdict in (Verdict(0.9, 1.0), Verdict(1.0, 0.9), Verdict(0.0, 0.0)):
        trip = RoundTrip(byte_bpe())
        trip.table.__dict__["verdict"] = verdict
        tokens = [i for i, t in enumerate(trip.tokenizer.token_texts) if t]
        compare(trip, ["the quick brown", "a"], tokens)


def test_last_words_are_encoded_together_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trip = RoundTrip(byte_bpe())
    assert trip.table.verdict == Verdict(1.0, 1.0)
    tokens = torch.nonzero(trip.table.word_internal).flatten().tolist()
    compare(trip, ["An image of a mus"], tokens)
    asked: list[int] = []
    encode_batch = Tokenizer.encode_batch

    def counted(self: Tokenizer, texts: list[str]) -> list[list[int]]:
        asked.append(len(texts))
        return encode_batch(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", counted)
    texts = ["the quick mus"]
    ids = PaddedIds.from_lists([byte_bpe().encode(t) for t in texts])
    rows, all_tokens = torch.zeros(len(tokens), dtype=torch.long), torch.tensor(tokens)
    trip.survives(texts, ids, rows, all_tokens)
    # The text itself; of longer words, none that was met before, whatever stands before it.
    assert sum(asked) == 1


def test_only_tokens_that_are_asked_for_are_tried() -> None:
    trip = RoundTrip(byte_bpe())
    assert trip.table.verdict == Verdict(1.0, 1.0)
    trip.table.__dict__.pop("pieces", None)
    asked = torch.nonzero(trip.table.word_initial).flatten()[:5]
    joining = torch.nonzero(trip.table.word_internal).flatten()[:5]
    compare(trip, ["the quick", "a"], [*asked.tolist(), *joining.tolist()])
    assert torch.nonzero(trip._known).flatten().tolist() == asked.tolist()
    assert "pieces" not in trip.table.__dict__


def test_no_candidates_are_no_trouble() -> None:
    none = torch.zeros(0, dtype=torch.long)
    assert RoundTrip(byte_bpe()).survives([], PaddedIds.from_lists([]), none, none).shape == (0,)


@pytest.mark.offline
def test_the_offline_writer_is_answered_from_tables() -> None:
    trip = RoundTrip(Tokenizer.from_pretrained(offline_folder("offline:lm")))
    assert trip.table.verdict == Verdict(1.0, 1.0)
    words = torch.nonzero(trip.table.word_initial | trip.table.word_internal).flatten()
    generator = torch.Generator().manual_seed(0)
    some = words[torch.randperm(len(words), generator=generator)[:800]].tolist()
    share = compare(trip, ["An image of a", "a dog running on the bea", "U.S"], some)
    assert 0.5 < share < 1.0


def test_first_words_are_words_that_stand_after_a_blank_too() -> None:
    classes = TokenClasses(byte_bpe(), 9)
    texts = ["-", " -", "the", " the", "ing", "The", "the.", " the.", "'"]
    classes.__dict__["_texts"] = texts
    pairs = [(texts[a], texts[b]) for a, b in classes.first_words.T.tolist()]
    assert pairs == [("the", " the"), ("The", " the")]
