"""The controls: nothing, and noise that does not depend on the batch."""

import torch

from fuseprompt.transfer.base import Slots, TokenScorer
from fuseprompt.transfer.controls import NoTransfer, RandomTransfer
from tests.tiny import gpt2
from tests.transfer.fake_loss import linear_loss, new_words, similarity_loss, table_for

TEXTS = ("An image of", "a photo", "An image of a")


def bound(seed: int = 0, scale: float = 0.03) -> TokenScorer:
    loss = linear_loss()
    return RandomTransfer(seed, scale).bind(gpt2(), table_for(loss), loss)


def slots_of(*texts: str, problem: int = 0) -> Slots:
    return Slots.append(texts, torch.full((len(texts),), problem))


def test_no_transfer_says_nothing() -> None:
    loss = linear_loss()
    scorer = NoTransfer().bind(gpt2(), table_for(loss), loss)
    assert (scorer.new_words(slots_of(*TEXTS), torch.arange(7)) == 0).all()
    assert scorer.continuations(slots_of(*TEXTS), torch.zeros(3, 4, dtype=torch.long)).shape == (
        3,
        4,
    )


def test_a_token_in_a_slot_gets_the_same_number_whatever_the_batch() -> None:
    words = new_words(table_for(linear_loss()))
    together = bound().new_words(slots_of(*TEXTS), words)
    for i, text in enumerate(TEXTS):
        assert torch.equal(bound().new_words(slots_of(text), words)[0], together[i])
    turned = words.flip(0)[::3]
    again = bound().new_words(slots_of(*reversed(TEXTS)), turned)
    assert torch.equal(again.flip(0), together.flip(1)[:, ::3])


def test_new_words_and_continuations_share_the_numbers() -> None:
    tokens = torch.tensor([[3, 4, 5], [9, 8, 7], [0, 1, 2]])
    slots = slots_of(*TEXTS)
    every = bound().new_words(slots, torch.arange(gpt2().tokenizer.vocab_size))
    assert torch.equal(bound().continuations(slots, tokens), every.gather(1, tokens))


def test_texts_problems_seeds_and_terms_have_numbers_of_their_own() -> None:
    words = torch.arange(300)
    loss = similarity_loss()
    rows = [
        *bound().new_words(slots_of(*TEXTS), words),
        bound().new_words(slots_of(TEXTS[0], problem=1), words)[0],
        bound(seed=1).new_words(slots_of(TEXTS[0]), words)[0],
        RandomTransfer()
        .bind(gpt2(), table_for(loss), loss)
        .new_words(slots_of(TEXTS[0]), words)[0],
        bound().new_words(Slots(TEXTS[:1], (" x",), torch.tensor([0])), words)[0],
    ]
    correlation = torch.corrcoef(torch.stack(rows)) - torch.eye(len(rows))
    assert correlation.abs().max() < 0.3


def test_the_scale_is_the_standard_deviation() -> None:
    scores = bound(scale=2.0).new_words(slots_of(*TEXTS), torch.arange(400))
    torch.testing.assert_close(scores.std(), torch.tensor(2.0), rtol=0.1, atol=0.0)


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    bound().new_words(slots_of(*TEXTS), torch.arange(5))
    assert torch.equal(before, torch.random.get_rng_state())
