"""The module: exact forward, transposed t-product backward, batches, frames."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close

from fuseprompt.errors import AlignmentError, FingerprintError, ShapeError
from fuseprompt.fuse.adapter import FuseAdapter
from fuseprompt.fuse.fit import FitSettings, fit_adapter
from fuseprompt.fuse.gradient import count_without_map, map_embeddings, transfer_gradient
from fuseprompt.fuse.table import fingerprint_models
from tests.fuse.tensors import random_tensor
from tests.fuse.test_alignment import FACTORIES
from tests.fuse.test_alignment import TEXTS as HOSTILE_TEXTS
from tests.fuse.tiny import made_up_words, tiny_model, tiny_pair
from tests.text.tiny import byte_bpe, word_piece

PRIMARY, SECONDARY = tiny_pair()
TABLE = fit_adapter(
    PRIMARY, SECONDARY, words=made_up_words(600), settings=FitSettings(min_words=16)
)
TEXTS = st.lists(
    st.sampled_from(["the quick brown fox", "a", "extraordinary 😀  things", "neighbours in 1987"]),
    min_size=1,
    max_size=3,
)


def embeds_of(rows: list[list[int]]) -> torch.Tensor:
    """Return the primary's embeddings as a leaf."""
    vectors = [PRIMARY.vocabulary[row] for row in rows]
    return torch.nn.utils.rnn.pad_sequence(vectors, batch_first=True).requires_grad_()


@given(texts=TEXTS)
def test_forward_is_the_secondarys_own_embedding_of_the_text(texts):
    adapter = FuseAdapter(PRIMARY, SECONDARY, table=TABLE)
    ids = PRIMARY.tokenizer.encode_batch(texts)
    output = adapter(embeds_of(ids), ids)
    assert list(map(list, output.token_ids)) == SECONDARY.tokenizer.encode_batch(texts)
    for row, text in enumerate(texts):
        expected = SECONDARY.vocabulary[SECONDARY.tokenizer.encode(text)]
        assert torch.equal(output.embeds[row, : len(expected)], expected)
        assert not output.embeds[row, len(expected) :].any()


@given(texts=TEXTS, special=st.booleans())
def test_backward_is_the_transposed_map_of_each_text(texts, special):
    adapter = FuseAdapter(PRIMARY, SECONDARY, table=TABLE, add_special_tokens=special)
    ids = PRIMARY.tokenizer.encode_batch(texts)
    embeds = embeds_of(ids)
    output = adapter(embeds, ids)
    weights = random_tensor(*output.embeds.shape, seed=3)
    (output.embeds * weights).sum().backward()
    start = len(SECONDARY.tokenizer.prefix_ids) if special else 0
    for row, alignment in enumerate(output.alignments):
        grad = weights[row, start : start + len(alignment.secondary_spans)]
        carried = transfer_gradient(grad, alignment, table=TABLE)
        assert output.num_dropped[row] == count_without_map(alignment, table=TABLE)
        assert_close(embeds.grad[row, : len(carried)], carried)
        assert not embeds.grad[row, len(carried) :].any()
        plain = PRIMARY.vocabulary[ids[row]].requires_grad_()
        mapped = map_embeddings(plain, alignment, table=TABLE)
        if mapped.requires_grad:
            (expected,) = torch.autograd.grad((mapped * grad).sum(), plain)
            assert_close(carried, expected)
        else:  # no word of the text has a map
            assert not carried.any()


def test_a_tensor_of_equally_long_rows_and_no_gradient():
    adapter = FuseAdapter(PRIMARY, SECONDARY, table=TABLE)
    ids = torch.tensor([PRIMARY.tokenizer.encode("the fox")])
    output = adapter(PRIMARY.vocabulary[ids], ids)
    assert not output.embeds.requires_grad


def test_gradient_descends_a_secondary_loss_through_the_adapter():
    """A step against the carried gradient lowers the loss of the mapped embeddings."""
    adapter = FuseAdapter(PRIMARY, SECONDARY, table=TABLE)
    ids = torch.tensor([PRIMARY.tokenizer.encode("the quick brown fox")])
    embeds = PRIMARY.vocabulary[ids].clone().requires_grad_()
    output = adapter(embeds, ids)
    target = random_tensor(4, seed=8)
    output.embeds.matmul(target).sum().backward()
    alignment = output.alignments[0]
    before = map_embeddings(embeds.detach()[0], alignment, table=TABLE).matmul(target).sum()
    stepped = (embeds - 0.1 * embeds.grad).detach()[0]
    assert map_embeddings(stepped, alignment, table=TABLE).matmul(target).sum() < before


def test_ids_that_encoding_would_not_give_keep_their_positions():
    adapter = FuseAdapter(PRIMARY, SECONDARY, table=TABLE)
    letters = [PRIMARY.tokenizer.encode(c)[0] for c in "the"]
    assert PRIMARY.tokenizer.encode("the") != letters
    embeds = PRIMARY.vocabulary[letters][None].clone().requires_grad_()
    output = adapter(embeds, torch.tensor([letters]))
    assert [p.counts[0] for p in output.alignments[0].parts] == [3]


@given(text=HOSTILE_TEXTS, factory=st.sampled_from(FACTORIES))
def test_spans_of_carried_ids_equal_those_of_encoding(text, factory):
    tokenizer = factory()
    text = tokenizer.decode(tokenizer.encode(text))
    ids, spans = tokenizer.encode_with_offsets(text)
    assume(tokenizer.decode(ids) == text)
    assert tokenizer.decode_with_spans(ids) == (text, spans)


@given(text=HOSTILE_TEXTS)
def test_spans_of_ids_that_encoding_would_not_give(text):
    """One id per byte decodes to the text, and encoding the text gives other ids."""
    tokenizer = byte_bpe()
    ids = [i for c in text for b in c.encode() for i in tokenizer.encode(chr(b)) if b < 128]
    plain = tokenizer.decode(ids)
    assert tokenizer.decode_with_spans(ids) == (plain, [(i, i + 1) for i in range(len(plain))])


def test_bytes_of_one_character_share_its_span_on_the_slow_path():
    tokenizer = byte_bpe()
    face = tokenizer.encode("😀")
    ids = [token for part in ("t", "h", "e", "😀", "x") for token in tokenizer.encode(part)]
    assert ids != tokenizer.encode("the😀x")
    spans = [(0, 1), (1, 2), (2, 3), *[(3, 4)] * len(face), (4, 5)]
    assert tokenizer.decode_with_spans(ids) == ("the😀x", spans)


def test_errors_say_what_to_do():
    adapter = FuseAdapter(PRIMARY, SECONDARY, table=TABLE)
    ids = torch.tensor([[5, 6]])
    with pytest.raises(ShapeError, match="one embedding per id"):
        adapter(torch.zeros(1, 1, 5).double(), ids.tolist())
    face = PRIMARY.tokenizer.encode("😀")[:1]
    with pytest.raises(AlignmentError, match="no complete text"):
        adapter(torch.zeros(1, 1, 5).double(), torch.tensor([face]))
    with pytest.raises(FingerprintError, match="another secondary vocabulary"):
        FuseAdapter(PRIMARY, tiny_model(word_piece(), 4, seed=7), table=TABLE)
    assert fingerprint_models(PRIMARY, SECONDARY).items() <= TABLE.fingerprint.items()
