"""Positions: where the stand-in is."""

import pytest
import torch

from fuseprompt.errors import AlignmentError
from fuseprompt.proposals.base import (
    Positions,
    Proposal,
    ProposalState,
    Scorer,
    lengthened_words,
    put_stand_ins,
)
from fuseprompt.proposals.gradient import Gradient
from fuseprompt.proposals.language_model import LanguageModelOnly, RandomNoise
from fuseprompt.proposals.word_table import WordTable
from fuseprompt.text.retokenize import last_word
from fuseprompt.text.tokenizer import Tokenizer
from tests.proposals.fake_loss import linear_loss, table_for
from tests.tiny import bert_tokenizer, clip_tokenizer, gpt2, gpt2_tokenizer, llama_tokenizer

TOKENIZERS = [
    Tokenizer.from_hf(t())
    for t in (bert_tokenizer, clip_tokenizer, gpt2_tokenizer, llama_tokenizer)
]
families = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["bert", "clip", "gpt2", "llama"])
LEFTS = ("An image of", "a photo of the (red", "", "the end.", "a cat ", "unfortunately")


def positions_of(lefts: tuple[str, ...], rights: tuple[str, ...] | None = None) -> Positions:
    zeros = torch.zeros(len(lefts), dtype=torch.long)
    return Positions(lefts, rights if rights is not None else ("",) * len(lefts), zeros)


def test_slots_at_the_end_of_texts() -> None:
    positions = Positions.append(("a", "b c"), torch.tensor([1, 0]))
    assert positions.right == ("", "")
    assert len(positions) == 2


def test_slots_inside_a_word_are_refused() -> None:
    for right in ("", " on a bed", ", red", "."):
        assert positions_of(("a cat",), (right,)).right == (right,)
    for right in ("s on a bed", "9"):
        with pytest.raises(AlignmentError, match="goes on with its word: 'a cat'"):
            positions_of(("a cat",), (right,))


@families
def test_the_stand_in_of_a_new_word_follows_the_text(tokenizer: Tokenizer) -> None:
    positions = positions_of(LEFTS)
    ids = put_stand_ins(tokenizer, positions)
    for left, row, at in zip(LEFTS, ids.token_ids.to_lists(), ids.places.tolist(), strict=True):
        blank = "" if not left or left[-1].isspace() else " "
        assert row == tokenizer.add_special_tokens(tokenizer.encode(f"{left}{blank}it"))
        stem = len(tokenizer.prefix_ids) + len(tokenizer.encode(left.rstrip()))
        assert row[:at][:stem] == row[:stem]
        assert at >= stem
        assert "i" in tokenizer.decode([row[at]])


@families
def test_the_stand_in_of_a_last_word_takes_its_place(tokenizer: Tokenizer) -> None:
    ids = put_stand_ins(tokenizer, positions_of(LEFTS), for_last_words=True)
    for left, row in zip(LEFTS, ids.token_ids.to_lists(), strict=True):
        stem = left[: len(left) - len(last_word(left).lstrip())]
        assert row == tokenizer.add_special_tokens(tokenizer.encode(f"{stem}it"))


@families
def test_text_after_the_position_stays(tokenizer: Tokenizer) -> None:
    ids = put_stand_ins(tokenizer, positions_of(("a photo of",), (" on the beach.",)))
    (row,) = ids.token_ids.to_lists()
    assert row == tokenizer.add_special_tokens(tokenizer.encode("a photo of it on the beach."))
    alone = put_stand_ins(tokenizer, positions_of(("a photo of",)))
    assert ids.places.tolist() == alone.places.tolist()


def test_lengthened_words_are_the_last_word_with_each_token() -> None:
    loss = linear_loss()
    table = table_for(loss)
    texts = table.primary.token_texts
    tokens = torch.tensor([[40, 50], [60, 40]])
    positions = Positions.append(("An image of", "a"), torch.tensor([0, 1]))
    words = lengthened_words(table, positions, tokens)
    assert words == [" of" + texts[40], " of" + texts[50], "a" + texts[60], "a" + texts[40]]


@pytest.mark.parametrize(
    "proposal", [LanguageModelOnly(), RandomNoise(), Gradient()], ids=lambda p: p.name
)
def test_every_proposal_keeps_the_protocol(proposal: Proposal) -> None:
    assert isinstance(proposal, Proposal)
    assert isinstance(WordTable(), Proposal)
    loss = linear_loss()
    table = table_for(loss)
    state = proposal.init(gpt2(), loss.model, table)
    assert isinstance(state, ProposalState)
    scorer = state.bind(loss)
    assert isinstance(scorer, Scorer)
    positions = Positions.append(("An image of", "a"), torch.tensor([0, 1]))
    words = torch.nonzero(table.word_initial).flatten()[:5]
    assert scorer.word_initial(positions, words).shape == (2, 5)
    tokens = torch.tensor([[40, 50, 60]] * 2)
    scores = scorer.word_internal(positions, tokens)
    assert scores.shape == (2, 3)
    assert scores.isfinite().all()
    assert scorer.word_internal(positions, torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0)
