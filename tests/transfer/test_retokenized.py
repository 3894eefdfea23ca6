"""The direct transfer: exact where a loss is linear, useful where it is not."""

from dataclasses import dataclass

import pytest
import torch

from fuseprompt.models.sentence import SentenceEncoder
from fuseprompt.offline.manifest import offline_folder
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.text.tokenizer import Tokenizer
from fuseprompt.transfer.base import Slots
from fuseprompt.transfer.controls import RandomTransfer
from fuseprompt.transfer.linearise import CommonWords, VocabularyMean
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from tests.tiny import gpt2
from tests.transfer.fake_loss import (
    DotLoss,
    exact,
    linear_loss,
    new_words,
    similarity_loss,
    table_for,
)


@dataclass(frozen=True)
class TinyPrimary:
    """The tokenizer of a primary; the direct transfer needs no more of it."""

    tokenizer: Tokenizer

    @property
    def vocabulary(self) -> torch.Tensor:
        """Nothing."""
        return torch.zeros(self.tokenizer.vocab_size, 1)


SLOTS = Slots.append(("An image of", "a photo of the"), torch.tensor([0, 1]))


def single_pieces(loss: DotLoss) -> torch.Tensor:
    """Return new words that are one piece of the secondary's."""
    table = table_for(loss)
    return torch.nonzero(table.starts_word & (table.pieces.lengths == 1)).flatten()


def ranks(scores: torch.Tensor) -> torch.Tensor:
    return scores.argsort().argsort().double()


def rank_correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([ranks(a), ranks(b)]))[0, 1])


def test_rank_correlation_itself() -> None:
    values = torch.tensor([3.0, 1.0, 2.0])
    assert rank_correlation(values, values**3) == 1.0
    assert rank_correlation(values, -values) == -1.0


def test_new_words_of_a_linear_loss_differ_by_the_exact_amount() -> None:
    loss = linear_loss()
    words = single_pieces(loss)
    scorer = RetokenizedTransfer(CommonWords(3), gain=1.0).bind(gpt2(), table_for(loss), loss)
    got = scorer.new_words(SLOTS, words)
    texts = gpt2().tokenizer.token_texts
    for i, left in enumerate(SLOTS.left):
        want = exact(loss, [left + texts[w] for w in words.tolist()], [i] * len(words))
        torch.testing.assert_close(got[i] - got[i, :1], want - want[0], rtol=1e-4, atol=1e-4)


def test_continuations_of_a_linear_loss_that_stay_one_piece_differ_by_the_exact_amount() -> None:
    loss = linear_loss()
    slots = Slots.append(("a photo of", "a b"), torch.tensor([0, 1]))
    texts = gpt2().tokenizer.token_texts
    joining = [i for i, t in enumerate(texts) if t.isalpha() and t.isascii() and len(t) > 1]
    tokens = torch.tensor([joining] * 2)
    scorer = RetokenizedTransfer(CommonWords(2), gain=1.0).bind(gpt2(), table_for(loss), loss)
    got = scorer.continuations(slots, tokens)
    for i, left in enumerate(slots.left):
        word = left.split()[-1]
        one = [j for j, t in enumerate(joining) if len(loss.tokenizer.encode(word + texts[t])) == 1]
        if len(one) > 1:
            want = exact(loss, [left + texts[joining[j]] for j in one], [i] * len(one))
            torch.testing.assert_close(
                got[i, one] - got[i, one[:1]], want - want[0], rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("right", [" sleeps on a bed.", ", red"])
def test_replacing_a_word_inside_a_text_differs_by_the_exact_amount(right: str) -> None:
    loss = linear_loss()
    words = single_pieces(loss)
    slots = Slots(("a photo of a", "the happy"), (right, right), torch.tensor([0, 1]))
    scorer = RetokenizedTransfer(CommonWords(3), gain=1.0).bind(gpt2(), table_for(loss), loss)
    got = scorer.new_words(slots, words)
    texts = gpt2().tokenizer.token_texts
    for i, left in enumerate(slots.left):
        whole = [left + texts[w] + right for w in words.tolist()]
        want = exact(loss, whole, [i] * len(words))
        torch.testing.assert_close(got[i] - got[i, :1], want - want[0], rtol=1e-4, atol=1e-4)


def test_what_follows_a_slot_is_seen() -> None:
    loss = similarity_loss()
    words = single_pieces(loss)
    scorer = RetokenizedTransfer(CommonWords(3)).bind(gpt2(), table_for(loss), loss)
    rights = ("", " sleeps on a bed.")
    at_end, inside = scorer.new_words(Slots(("a", "a"), rights, torch.tensor([0, 0])), words)
    assert float((at_end - inside).abs().max()) > 1e-4


def test_a_token_of_many_pieces_is_the_mean_of_its_pieces() -> None:
    loss = linear_loss()
    table = table_for(loss)
    several = torch.nonzero(table.pieces.lengths > 1).flatten()[:4]
    scorer = RetokenizedTransfer(VocabularyMean(), gain=1.0).bind(gpt2(), table, loss)
    pieces = table.pieces[several].to_lists()
    got = scorer.new_words(SLOTS, several)
    direction = loss.model.matrix @ loss.targets.T  # type: ignore[attr-defined]  # (d, problems)
    means = torch.stack([loss.vocabulary[p].mean(0) for p in pieces])
    want = (means @ direction).T
    torch.testing.assert_close(got - got[:, :1], want - want[:, :1], rtol=1e-4, atol=1e-4)


@pytest.mark.offline
def test_the_gradient_ranks_words_far_better_than_chance_in_a_real_model() -> None:
    encoder = SentenceEncoder.load(offline_folder("offline:sentence"))
    primary = TinyPrimary(Tokenizer.from_pretrained(offline_folder("offline:lm")))
    loss = DotLoss(encoder, -encoder.encode(["A cat sleeps on a red sofa.", "Boats on the sea."]))
    table = RetokenizationTable(primary.tokenizer, encoder.tokenizer)
    words = new_words(table)[::150]
    got = RetokenizedTransfer().bind(primary, table, loss).new_words(SLOTS, words)
    noise = RandomTransfer().bind(primary, table, loss).new_words(SLOTS, words)
    texts = primary.tokenizer.token_texts
    for i, left in enumerate(SLOTS.left):
        want = exact(loss, [left + texts[w] for w in words.tolist()], [i] * len(words))
        assert rank_correlation(got[i], want) > 0.35
        assert abs(rank_correlation(noise[i], want)) < 0.2


def test_the_gain_changes_no_order() -> None:
    loss = similarity_loss()
    table = table_for(loss)
    words = new_words(table)
    low, high = (
        RetokenizedTransfer(gain=g).bind(gpt2(), table, loss).new_words(SLOTS, words)
        for g in (1.0, 2.6)
    )
    assert torch.equal(low.argsort(stable=True)[:, :20], high.argsort(stable=True)[:, :20])


def test_slots_do_not_touch_each_other() -> None:
    loss = similarity_loss()
    scorer = RetokenizedTransfer().bind(gpt2(), table_for(loss), loss)
    words = new_words(table_for(loss))
    tokens = torch.tensor([[40, 41, 42], [50, 51, 52]])
    many, more = scorer.new_words(SLOTS, words), scorer.continuations(SLOTS, tokens)
    for i in range(2):
        one = Slots.append(SLOTS.left[i : i + 1], SLOTS.problems[i : i + 1])
        torch.testing.assert_close(scorer.new_words(one, words)[0], many[i], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            scorer.continuations(one, tokens[i : i + 1])[0], more[i], atol=1e-5, rtol=1e-4
        )
