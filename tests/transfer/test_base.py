"""Slots: where the stand-in stands, and the mean of pieces."""

from dataclasses import replace

import pytest
import torch

from fuseprompt.errors import AlignmentError
from fuseprompt.text.retokenize import PaddedIds, last_word
from fuseprompt.text.tokenizer import Tokenizer
from fuseprompt.transfer.base import (
    Slots,
    TokenScorer,
    Transfer,
    continued_pieces,
    continued_words,
    mean_pieces,
    new_word_embeds,
    tokenize_last_word_slots,
    tokenize_new_word_slots,
    widen,
)
from fuseprompt.transfer.combined import SumTransfer, UnionTransfer
from fuseprompt.transfer.controls import NoTransfer, RandomTransfer
from fuseprompt.transfer.relinearized import RelinearizedTransfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.word_table import WordTable
from tests.tiny import bert_tokenizer, clip_tokenizer, gpt2, gpt2_tokenizer, llama_tokenizer
from tests.transfer.fake_loss import SLOTS, bound_term, linear_loss, table_for

TOKENIZERS = [
    Tokenizer.from_hf(t())
    for t in (bert_tokenizer, clip_tokenizer, gpt2_tokenizer, llama_tokenizer)
]
families = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["bert", "clip", "gpt2", "llama"])
LEFTS = ("An image of", "a photo of the (red", "", "the end.", "a cat ", "unfortunately")


def slots_of(lefts: tuple[str, ...], rights: tuple[str, ...] | None = None) -> Slots:
    zeros = torch.zeros(len(lefts), dtype=torch.long)
    return Slots(lefts, rights if rights is not None else ("",) * len(lefts), zeros)


def test_slots_at_the_end_of_texts() -> None:
    slots = Slots.append(("a", "b c"), torch.tensor([1, 0]))
    assert slots.right == ("", "")
    assert len(slots) == 2


def test_slots_inside_a_word_are_refused() -> None:
    for right in ("", " on a bed", ", red", "."):
        assert slots_of(("a cat",), (right,)).right == (right,)
    for right in ("s on a bed", "9"):
        with pytest.raises(AlignmentError, match="goes on with its word: 'a cat'"):
            slots_of(("a cat",), (right,))


@families
def test_the_stand_in_of_a_new_word_follows_the_text(tokenizer: Tokenizer) -> None:
    slots = slots_of(LEFTS)
    ids = tokenize_new_word_slots(tokenizer, slots)
    for left, row, at in zip(LEFTS, ids.token_ids.to_lists(), ids.positions.tolist(), strict=True):
        blank = "" if not left or left[-1].isspace() else " "
        assert row == tokenizer.frame(tokenizer.encode(f"{left}{blank}it"))
        stem = len(tokenizer.prefix_ids) + len(tokenizer.encode(left.rstrip()))
        assert row[:at][:stem] == row[:stem]
        assert at >= stem
        assert "i" in tokenizer.decode([row[at]])


@families
def test_the_stand_in_of_a_last_word_takes_its_place(tokenizer: Tokenizer) -> None:
    ids = tokenize_last_word_slots(tokenizer, slots_of(LEFTS))
    for left, row in zip(LEFTS, ids.token_ids.to_lists(), strict=True):
        stem = left[: len(left) - len(last_word(left).lstrip())]
        assert row == tokenizer.frame(tokenizer.encode(f"{stem}it"))


@families
def test_text_after_the_slot_stays(tokenizer: Tokenizer) -> None:
    ids = tokenize_new_word_slots(tokenizer, slots_of(("a photo of",), (" on the beach.",)))
    (row,) = ids.token_ids.to_lists()
    assert row == tokenizer.frame(tokenizer.encode("a photo of it on the beach."))
    alone = tokenize_new_word_slots(tokenizer, slots_of(("a photo of",)))
    assert ids.positions.tolist() == alone.positions.tolist()


def test_the_mean_of_pieces() -> None:
    vocabulary = torch.arange(12.0).reshape(4, 3)
    pieces = PaddedIds.from_lists([[1], [0, 3], [], [2, 2, 1]])
    want = torch.stack(
        [
            vocabulary[1],
            vocabulary[[0, 3]].mean(0),
            torch.zeros(3),
            vocabulary[[2, 2, 1]].mean(0),
        ]
    )
    torch.testing.assert_close(mean_pieces(vocabulary, pieces), want)


def test_widening_keeps_the_rest_of_the_text() -> None:
    term = bound_term()
    slots = tokenize_new_word_slots(term.tokenizer, SLOTS)
    for width in (1, 3):
        wide = widen(slots, width)
        for old, new, at in zip(
            slots.token_ids.to_lists(), wide.token_ids.to_lists(), slots.positions, strict=True
        ):
            assert new[:at] + new[at + width :] == old[:at] + old[at + 1 :]
            assert len(set(new[at : at + width])) == 1


def test_continued_words_are_the_last_word_with_each_token() -> None:
    loss = linear_loss()
    table = table_for(loss)
    texts = table.primary.token_texts
    tokens = torch.tensor([[40, 50], [60, 40]])
    slots = Slots.append(("An image of", "a"), torch.tensor([0, 1]))
    words = continued_words(table, slots, tokens)
    assert words == [" of" + texts[40], " of" + texts[50], "a" + texts[60], "a" + texts[40]]
    pieces = continued_pieces(table, slots, tokens)
    assert pieces.to_lists() == [table.encode_word(word) for word in words]


def test_the_embeddings_of_new_words_are_made_once_for_a_table_and_a_model() -> None:
    loss, other = linear_loss(), linear_loss()
    table = table_for(loss)
    embeds = new_word_embeds(table, loss)
    torch.testing.assert_close(embeds, mean_pieces(loss.vocabulary, table.pieces))
    assert new_word_embeds(table, replace(loss, targets=-loss.targets)) is embeds
    assert new_word_embeds(table, other) is not embeds
    assert new_word_embeds(table_for(loss), loss) is not embeds


@pytest.mark.parametrize(
    "transfer",
    [
        NoTransfer(),
        RandomTransfer(),
        RetokenizedTransfer(),
        SumTransfer(second=NoTransfer()),
        UnionTransfer(second=NoTransfer()),
        RelinearizedTransfer(num_best=2),
    ],
    ids=lambda t: t.name,
)
def test_every_transfer_keeps_the_protocol(transfer: Transfer) -> None:
    assert isinstance(transfer, Transfer)
    assert isinstance(WordTable(), Transfer)
    loss = linear_loss()
    table = table_for(loss)
    scorer = transfer.bind(gpt2(), table, loss)
    assert isinstance(scorer, TokenScorer)
    slots = Slots.append(("An image of", "a"), torch.tensor([0, 1]))
    words = torch.nonzero(table.starts_word).flatten()[:5]
    assert scorer.new_words(slots, words).shape == (2, 5)
    tokens = torch.tensor([[40, 50, 60]] * 2)
    scores = scorer.continuations(slots, tokens)
    assert scores.shape == (2, 3)
    assert scores.isfinite().all()
    assert scorer.continuations(slots, torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0)
