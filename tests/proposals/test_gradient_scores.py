"""The gradient: exact where a loss is linear, useful where it is not."""

from dataclasses import dataclass, replace

import pytest
import torch

from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.offline.manifest import offline_folder
from fuseprompt.proposals.base import Positions
from fuseprompt.proposals.gradient import GAIN, Gradient
from fuseprompt.proposals.language_model import RandomNoise
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.text.tokenizer import Tokenizer
from tests.proposals.fake_loss import (
    DotLoss,
    exact,
    initial_tokens,
    linear_loss,
    similarity_loss,
    table_for,
)
from tests.tiny import gpt2


@dataclass(frozen=True)
class TinyPrimary:
    """The tokenizer of a primary; the gradient needs no more of it."""

    tokenizer: Tokenizer
    name: str = "tiny"

    @property
    def vocabulary(self) -> torch.Tensor:
        """Nothing."""
        return torch.zeros(self.tokenizer.vocab_size, 1)


POSITIONS = Positions.append(("An image of", "a photo of the"), torch.tensor([0, 1]))


def single_pieces(loss: DotLoss) -> torch.Tensor:
    """Return new words that are one piece of the secondary's."""
    table = table_for(loss)
    return torch.nonzero(table.word_initial & (table.pieces.lengths == 1)).flatten()


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
    scorer = Gradient(3).init(gpt2(), loss.model, table_for(loss)).bind(loss)
    got = scorer.word_initial(POSITIONS, words)
    texts = gpt2().tokenizer.token_texts
    for i, left in enumerate(POSITIONS.left):
        want = exact(loss, [left + texts[w] for w in words.tolist()], [i] * len(words))
        torch.testing.assert_close(
            got[i] - got[i, :1], GAIN * (want - want[0]), rtol=1e-4, atol=1e-4
        )


def test_continuations_of_a_linear_loss_that_stay_one_piece_differ_by_the_exact_amount() -> None:
    loss = linear_loss()
    positions = Positions.append(("a photo of", "a b"), torch.tensor([0, 1]))
    texts = gpt2().tokenizer.token_texts
    joining = [i for i, t in enumerate(texts) if t.isalpha() and t.isascii() and len(t) > 1]
    tokens = torch.tensor([joining] * 2)
    scorer = Gradient(2).init(gpt2(), loss.model, table_for(loss)).bind(loss)
    got = scorer.word_internal(positions, tokens)
    for i, left in enumerate(positions.left):
        word = left.split()[-1]
        one = [j for j, t in enumerate(joining) if len(loss.tokenizer.encode(word + texts[t])) == 1]
        if len(one) > 1:
            want = exact(loss, [left + texts[joining[j]] for j in one], [i] * len(one))
            torch.testing.assert_close(
                got[i, one] - got[i, one[:1]], GAIN * (want - want[0]), rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("right", [" sleeps on a bed.", ", red"])
def test_replacing_a_word_inside_a_text_differs_by_the_exact_amount(right: str) -> None:
    loss = linear_loss()
    words = single_pieces(loss)
    positions = Positions(("a photo of a", "the happy"), (right, right), torch.tensor([0, 1]))
    scorer = Gradient(3).init(gpt2(), loss.model, table_for(loss)).bind(loss)
    got = scorer.word_initial(positions, words)
    texts = gpt2().tokenizer.token_texts
    for i, left in enumerate(positions.left):
        whole = [left + texts[w] + right for w in words.tolist()]
        want = exact(loss, whole, [i] * len(words))
        torch.testing.assert_close(
            got[i] - got[i, :1], GAIN * (want - want[0]), rtol=1e-4, atol=1e-4
        )


def test_what_follows_a_position_is_seen() -> None:
    loss = similarity_loss()
    words = single_pieces(loss)
    scorer = Gradient(3).init(gpt2(), loss.model, table_for(loss)).bind(loss)
    rights = ("", " sleeps on a bed.")
    at_end, inside = scorer.word_initial(Positions(("a", "a"), rights, torch.tensor([0, 0])), words)
    assert float((at_end - inside).abs().max()) > 1e-4


def test_a_token_of_many_pieces_is_the_mean_of_its_pieces() -> None:
    loss = linear_loss()
    table = table_for(loss)
    several = torch.nonzero(table.pieces.lengths > 1).flatten()[:4]
    scorer = Gradient(1).init(gpt2(), loss.model, table).bind(loss)
    pieces = table.pieces[several].to_lists()
    got = scorer.word_initial(POSITIONS, several)
    direction = loss.model.matrix @ loss.targets.T  # type: ignore[attr-defined]  # (d, problems)
    means = torch.stack([loss.vocabulary[p].mean(0) for p in pieces])
    want = (means @ direction).T
    torch.testing.assert_close(got - got[:, :1], GAIN * (want - want[:, :1]), rtol=1e-4, atol=1e-4)


@pytest.mark.offline
def test_the_gradient_ranks_words_far_better_than_chance_in_a_real_model() -> None:
    encoder = SentenceEncoder.load(offline_folder("offline:sentence"))
    primary = TinyPrimary(Tokenizer.from_pretrained(offline_folder("offline:lm")))
    loss = DotLoss(encoder, -encoder.encode(["A cat sleeps on a red sofa.", "Boats on the sea."]))
    table = RetokenizationTable(primary.tokenizer, encoder.tokenizer)
    words = initial_tokens(table)[::150]
    got = Gradient().init(primary, loss.model, table).bind(loss).word_initial(POSITIONS, words)
    noise = RandomNoise().init(primary, loss.model, table).bind(loss).word_initial(POSITIONS, words)
    texts = primary.tokenizer.token_texts
    for i, left in enumerate(POSITIONS.left):
        want = exact(loss, [left + texts[w] for w in words.tolist()], [i] * len(words))
        assert rank_correlation(got[i], want) > 0.35
        assert abs(rank_correlation(noise[i], want)) < 0.2


def test_positions_do_not_touch_each_other() -> None:
    loss = similarity_loss()
    scorer = Gradient().init(gpt2(), loss.model, table_for(loss)).bind(loss)
    words = initial_tokens(table_for(loss))
    tokens = torch.tensor([[40, 41, 42], [50, 51, 52]])
    many, more = scorer.word_initial(POSITIONS, words), scorer.word_internal(POSITIONS, tokens)
    for i in range(2):
        one = Positions.append(POSITIONS.left[i : i + 1], POSITIONS.problems[i : i + 1])
        torch.testing.assert_close(
            scorer.word_initial(one, words)[0], many[i], atol=1e-5, rtol=1e-4
        )
        torch.testing.assert_close(
            scorer.word_internal(one, tokens[i : i + 1])[0], more[i], atol=1e-5, rtol=1e-4
        )


def test_what_lasts_for_two_models_is_made_once() -> None:
    loss = linear_loss()
    table = table_for(loss)
    words = initial_tokens(table)
    state = Gradient(2).init(gpt2(), loss.model, table)
    first = state.bind(loss).word_initial(POSITIONS, words)
    embeds = state.embeds
    turned = replace(loss, targets=-loss.targets)
    second = state.bind(turned).word_initial(POSITIONS, words)
    assert state.embeds is embeds
    torch.testing.assert_close(second, -first)
