"""Candidates: round trip, no special tokens, order and ties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers, trainers

from fuseprompt.search.candidates import choose, lowest
from fuseprompt.search.hypotheses import Candidates, Hypotheses, extend
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.text.token_classes import SENTENCE_ENDS, TokenClasses
from fuseprompt.text.tokenizer import Tokenizer
from tests.methods.fixtures import objective
from tests.reference import candidates as plain
from tests.tiny import gpt2, sentence_encoder

TOKENIZER = gpt2().tokenizer
CLASSES = TokenClasses(TOKENIZER, TOKENIZER.vocab_size)


def beams_of(*texts: str) -> Hypotheses:
    ids = [TOKENIZER.encode(t) for t in texts]
    return Hypotheses(
        problems=torch.arange(len(texts)),
        token_ids=PaddedIds.from_lists(ids),
        num_given=torch.zeros(len(texts), dtype=torch.long),
        nll_sum=torch.zeros(len(texts), dtype=torch.float64),
        texts=texts,
        losses=torch.zeros(len(texts)),
    )


def chosen(beams: Hypotheses, scores: torch.Tensor, width: int, **more: object) -> Candidates:
    log_probs = torch.log_softmax(-scores.nan_to_num(posinf=50.0), dim=-1)
    allows = more.get("allows")
    return choose(beams, scores, log_probs, CLASSES, width=width, allows=allows)  # type: ignore[arg-type]


def test_every_candidate_survives_the_round_trip() -> None:
    beams = beams_of("An image of a mus", "the quick brown fo", "An image of")
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(3, TOKENIZER.vocab_size, generator=generator)
    candidates = chosen(beams, scores, 40)
    assert candidates.rows.bincount().tolist() == [40, 40, 40]
    ids = beams.token_ids.to_lists()
    for row, token, text in zip(
        candidates.rows.tolist(), candidates.tokens.tolist(), candidates.texts, strict=True
    ):
        assert TOKENIZER.encode(text) == [*ids[row], token]
        assert TOKENIZER.decode([*ids[row], token]) == text


def test_some_tokens_do_not_survive() -> None:
    # " the" is one token, so " t" followed by "he" is no way to write it.
    beams = beams_of("An image of t")
    scores = torch.full((1, TOKENIZER.vocab_size), float("inf"))
    (he,) = TOKENIZER.encode("he")
    scores[0, he] = 0.0
    assert TOKENIZER.encode("An image of the") != [*beams.token_ids.to_lists()[0], he]
    assert len(chosen(beams, scores, 5)) == 0


def test_the_best_come_first_and_ties_go_by_token_id() -> None:
    beams = beams_of("An image of")
    scores = torch.full((1, TOKENIZER.vocab_size), float("inf"))
    words = torch.nonzero(CLASSES.word_initial).flatten()[:20]
    scores[0, words] = torch.tensor([1.0, 0.5] * 10)
    picked = chosen(beams, scores, 15).tokens.tolist()
    better, worse = words[1::2].tolist(), words[0::2].tolist()
    assert picked == [*better, *worse][: len(picked)]
    assert len(picked) == 15


def test_a_ban_makes_room_for_the_next() -> None:
    beams = beams_of("An image of")
    scores = torch.arange(TOKENIZER.vocab_size, dtype=torch.float32)[None]
    free = chosen(beams, scores, 4).texts
    banned = chosen(beams, scores, 4, allows=lambda text, _: text != free[0]).texts
    assert banned[:3] == free[1:]


def test_a_text_that_may_not_grow_is_not_tried_with_every_token() -> None:
    asked: list[str] = []
    scores = torch.arange(TOKENIZER.vocab_size, dtype=torch.float32)[None]
    found = chosen(beams_of("a dog"), scores, 1, allows=lambda text, _: bool(asked.append(text)))
    assert len(found) == 0
    assert len(set(asked)) <= 64 < TOKENIZER.vocab_size


@pytest.mark.parametrize("width", [1, 7, 40, 10_000])
@pytest.mark.parametrize("banned", ["", "s"])
def test_candidates_are_those_of_the_plain_rule(width: int, banned: str) -> None:
    texts = ("An image of a mus", "the quick brown fo", "An image of", "a dog's", "")
    generator = torch.Generator().manual_seed(width)
    scores = torch.randint(0, 40, (5, TOKENIZER.vocab_size), generator=generator) / 4.0
    may = CLASSES.word_initial | CLASSES.word_internal
    scores[:, ~may] = float("inf")
    scores[1, 30:] = float("inf")  # fewer than asked for
    scores[2] = float("inf")  # none

    def allows(text: str, problem: int = 0) -> bool:
        return not banned or not text.endswith(banned)

    got = chosen(beams_of(*texts), scores, width, **({"allows": allows} if banned else {}))
    want = plain.choose(
        texts,
        scores.tolist(),
        TOKENIZER.encode,
        TOKENIZER.token_texts,
        width=width,
        allows=allows,
    )
    assert list(zip(got.rows.tolist(), got.tokens.tolist(), strict=True)) == want
    assert got.texts == tuple(texts[row] + TOKENIZER.token_texts[t] for row, t in want)
    assert torch.equal(got.predicted, scores[got.rows, got.tokens])


@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=9, max_size=9), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_lowest_is_the_beginning_of_a_stable_sort(rows: list[list[int]], count: int) -> None:
    scores = torch.tensor(rows, dtype=torch.float32)
    scores[scores == 3] = float("inf")
    got, want = lowest(scores, count), torch.argsort(scores, dim=1, stable=True)[:, :count]
    finite = torch.isfinite(scores.gather(1, want))
    assert torch.equal(got[finite], want[finite])


def test_classes_are_sorted_once_for_an_objective() -> None:
    one = objective()
    assert one.classes() is one.classes()
    assert one.classes() is not one.classes(ascii_only=False)
    assert one.classes().vocab_size == len(gpt2().vocabulary)
    device = torch.device("cpu")
    assert one.classes().on(device) is one.classes().on(device)
    assert one.classes().round_trip is one.classes().round_trip


def test_special_and_odd_tokens_are_in_no_class() -> None:
    classes = TokenClasses(TOKENIZER, TOKENIZER.vocab_size + 7)
    special = TOKENIZER.encode("<|endoftext|>")
    assert special == [0]
    for mask in (classes.word_initial, classes.word_internal):
        assert mask.shape == (TOKENIZER.vocab_size + 7,)
        assert not mask[0]
        assert not mask[TOKENIZER.vocab_size :].any()
    texts = TOKENIZER.token_texts
    for i in torch.nonzero(classes.word_initial | classes.word_internal).flatten().tolist():
        assert texts[i].isascii()
        assert texts[i].isprintable()
    assert not (classes.word_initial & classes.word_internal).any()
    assert {texts[i] for i in classes.ends.tolist()} == set(SENTENCE_ENDS)
    assert not classes.word_internal[classes.ends].any()


def test_a_tokenizer_without_special_texts_has_classes_too() -> None:
    rust = Rust(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    rust.train_from_iterator(["a cat a dog"] * 9, trainers.BpeTrainer(show_progress=False))
    bare = Tokenizer(rust, name="no specials")
    assert bare.special_texts == ()
    classes = TokenClasses(bare, bare.vocab_size)
    assert classes.word_initial[bare.encode("a cat")[-1]]
    assert classes.word_internal[bare.encode("a")[0]]


def test_extend_appends_tokens_and_sums_likelihoods() -> None:
    beams = beams_of("An image of a", "the")
    scores = torch.arange(TOKENIZER.vocab_size, dtype=torch.float32).repeat(2, 1)
    candidates = chosen(beams, scores, 3)
    losses = torch.arange(6, dtype=torch.float32)
    grown = extend(beams, candidates, torch.tensor([4, 0]), losses)
    assert grown.problems.tolist() == [1, 0]
    assert grown.losses.tolist() == [4.0, 0.0]
    assert grown.texts == (candidates.texts[4], candidates.texts[0])
    assert [TOKENIZER.encode(t) for t in grown.texts] == grown.token_ids.to_lists()
    torch.testing.assert_close(grown.nll_sum.float(), candidates.nll[[4, 0]])
    assert grown.num_chosen.tolist() == [len(TOKENIZER.encode(t)) for t in grown.texts]


def accented() -> Tokenizer:
    """Byte-level BPE that has whole words with accents, and pieces of characters."""
    rust = Rust.from_str(gpt2().tokenizer._backend.to_str())
    rust.train_from_iterator(
        ["un caf\u00e9 d\u00e9j\u00e0 pr\u00eat \u00e9t\u00e9 \u65e5\u672c"] * 50,
        trainers.BpeTrainer(
            vocab_size=330,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>"],
            show_progress=False,
        ),
    )
    return Tokenizer(rust, name="accented")


def test_words_that_are_not_ascii_are_proposed_only_where_asked_for() -> None:
    tokenizer = accented()
    texts = tokenizer.token_texts
    plain = TokenClasses(tokenizer, tokenizer.vocab_size)
    wide = TokenClasses(tokenizer, tokenizer.vocab_size, ascii_only=False)
    (word,) = tokenizer.encode(" \u00e9t\u00e9")
    assert wide.word_initial[word]
    assert not plain.word_initial[word]
    for mask in (wide.word_initial, wide.word_internal):
        offered = [texts[i] for i in torch.nonzero(mask).flatten().tolist()]
        assert not any("\ufffd" in t or "<|" in t for t in offered)  # no part of a character
        assert all(t.isprintable() for t in offered)
    assert (wide.word_initial | ~plain.word_initial).all()
    assert (wide.word_internal | ~plain.word_internal).all()
    assert not (wide.word_initial & wide.word_internal).any()


def test_words_that_are_not_ascii_have_pieces_and_exact_ids() -> None:
    tokenizer = accented()
    table = RetokenizationTable(tokenizer, sentence_encoder().tokenizer)
    (word,) = tokenizer.encode(" caf\u00e9")
    assert not table.word_initial[word]
    assert int(table.pieces.lengths[word]) > 0
    ids, _ = table.extend(["un"], torch.tensor([0]), torch.tensor([word]))
    secondary = sentence_encoder().tokenizer
    assert ids.to_lists() == [secondary.add_special_tokens(secondary.encode("un caf\u00e9"))]
