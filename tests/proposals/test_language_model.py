"""The controls: nothing, and noise that does not depend on the batch."""

import torch

from fuseprompt.proposals.base import Positions, Scorer
from fuseprompt.proposals.language_model import LanguageModelOnly, RandomNoise
from tests.proposals.fake_loss import initial_tokens, linear_loss, similarity_loss, table_for
from tests.tiny import gpt2

TEXTS = ("An image of", "a photo", "An image of a")


def bound(seed: int = 0, scale: float = 0.03) -> Scorer:
    loss = linear_loss()
    return RandomNoise(seed, scale).init(gpt2(), loss.model, table_for(loss)).bind(loss)


def positions_of(*texts: str, problem: int = 0) -> Positions:
    return Positions.append(texts, torch.full((len(texts),), problem))


def test_the_language_model_alone_says_nothing_of_other_terms() -> None:
    loss = linear_loss()
    scorer = LanguageModelOnly().init(gpt2(), loss.model, table_for(loss)).bind(loss)
    assert (scorer.word_initial(positions_of(*TEXTS), torch.arange(7)) == 0).all()
    assert scorer.word_internal(
        positions_of(*TEXTS), torch.zeros(3, 4, dtype=torch.long)
    ).shape == (
        3,
        4,
    )


def test_a_token_at_a_position_gets_the_same_number_whatever_the_batch() -> None:
    words = initial_tokens(table_for(linear_loss()))
    together = bound().word_initial(positions_of(*TEXTS), words)
    for i, text in enumerate(TEXTS):
        assert torch.equal(bound().word_initial(positions_of(text), words)[0], together[i])
    turned = words.flip(0)[::3]
    again = bound().word_initial(positions_of(*reversed(TEXTS)), turned)
    assert torch.equal(again.flip(0), together.flip(1)[:, ::3])


def test_word_initial_and_word_internal_tokens_share_the_numbers() -> None:
    tokens = torch.tensor([[3, 4, 5], [9, 8, 7], [0, 1, 2]])
    positions = positions_of(*TEXTS)
    every = bound().word_initial(positions, torch.arange(gpt2().tokenizer.vocab_size))
    assert torch.equal(bound().word_internal(positions, tokens), every.gather(1, tokens))


def test_texts_problems_seeds_and_terms_have_numbers_of_their_own() -> None:
    words = torch.arange(300)
    loss = similarity_loss()
    rows = [
        *bound().word_initial(positions_of(*TEXTS), words),
        bound().word_initial(positions_of(TEXTS[0], problem=1), words)[0],
        bound(seed=1).word_initial(positions_of(TEXTS[0]), words)[0],
        RandomNoise()
        .init(gpt2(), loss.model, table_for(loss))
        .bind(loss)
        .word_initial(positions_of(TEXTS[0]), words)[0],
        bound().word_initial(Positions(TEXTS[:1], (" x",), torch.tensor([0])), words)[0],
    ]
    correlation = torch.corrcoef(torch.stack(rows)) - torch.eye(len(rows))
    assert correlation.abs().max() < 0.3


def test_the_scale_is_the_standard_deviation() -> None:
    scores = bound(scale=2.0).word_initial(positions_of(*TEXTS), torch.arange(400))
    torch.testing.assert_close(scores.std(), torch.tensor(2.0), rtol=0.1, atol=0.0)


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    bound().word_initial(positions_of(*TEXTS), torch.arange(5))
    assert torch.equal(before, torch.random.get_rng_state())
