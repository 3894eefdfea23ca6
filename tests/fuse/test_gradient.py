"""Gradients through the maps are exact adjoints, and the tests notice where they are not."""

import dataclasses
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fuseprompt.errors import AlignmentError
from fuseprompt.fuse import gradient
from fuseprompt.fuse.alignment import align
from fuseprompt.fuse.fit import fit_adapter
from fuseprompt.fuse.gradient import (
    RandomFallback,
    count_without_map,
    map_embeddings,
    transfer_gradient,
)
from fuseprompt.fuse.table import SHARED, CaseReport, JacobianTable
from tests.fuse.tensors import random_tensor
from tests.fuse.test_alignment import at_most
from tests.fuse.tiny import tiny_model
from tests.reference import fuse as reference
from tests.text.tiny import byte_bpe, end_of_word_bpe, word_piece

TEXTS = st.sampled_from(
    [
        "the quick brown fox",
        " a photo of  extraordinary misunderstandings",
        "neighbours' motorcycle, 1987!",
        "x",
        "",
        "😀 emoji and 中文 \n lines",
        "unfortunatelyinternationalconversations happen",
    ]
)


def random_table(cases=None, *, max_tokens: int = 4, seed: int = 0) -> JacobianTable:
    """Return random maps of widths 5 and 4, for every case or those given."""
    pairs = [(k, n) for k in range(1, max_tokens + 1) for n in range(1, max_tokens + 1)]
    maps = {
        (k, n): random_tensor(5, 4, max(k, n), seed=seed + 10 * k + n)
        for k, n in (pairs if cases is None else cases)
    }
    report = CaseReport(1, 1, 1.0, 0.0, 0.0, 0.0)
    return JacobianTable(maps, dict.fromkeys(maps, report), max_tokens, {}, {}, {})


def aligned(text, primary=byte_bpe, secondary=word_piece):
    """Align a text in two tiny tokenizations."""
    ours, theirs = (f().encode_with_offsets(text)[1] for f in (primary, secondary))
    return align(text, ours, theirs)


def adjoint_gap(alignment, table) -> float:
    """Return the largest difference of the carried gradient from autograd's through the map."""
    embeds = random_tensor(len(alignment.primary_spans), 5, seed=1).requires_grad_()
    grad = random_tensor(len(alignment.secondary_spans), 4, seed=2)
    mapped = map_embeddings(embeds, alignment, table=table)
    (expected,) = torch.autograd.grad((mapped * grad).sum(), embeds)
    carried = transfer_gradient(grad, alignment, table=table)
    return float((carried - expected).abs().max()) if len(carried) else 0.0


@given(text=TEXTS, secondary=st.sampled_from([word_piece, end_of_word_bpe, byte_bpe]))
def test_gradient_is_autograds_through_the_explicit_map(text, secondary):
    if text:
        assert adjoint_gap(aligned(text, secondary=secondary), random_table()) < 1e-12


def test_without_slice_reversal_the_gradient_is_wrong():
    """Negative control; words of three tokens and more are needed to see it."""
    alignment = aligned("extraordinary unfortunately neighbours")
    assert max(max(p.counts) for p in alignment.cut(at_most(4)).parts) >= 3
    assert adjoint_gap(alignment, random_table()) < 1e-12
    with mock.patch.object(gradient, "t_transpose", lambda a: a.transpose(0, 1)):
        assert adjoint_gap(alignment, random_table()) > 0.1


def test_the_map_of_a_text_and_its_adjoint_pass_gradcheck():
    alignment = aligned("extraordinary fox")
    embeds = random_tensor(len(alignment.primary_spans), 5, seed=1).requires_grad_()
    grad = random_tensor(len(alignment.secondary_spans), 4, seed=2).requires_grad_()
    table = random_table()
    torch.autograd.gradcheck(lambda x: map_embeddings(x, alignment, table=table), (embeds,))
    torch.autograd.gradcheck(lambda g: transfer_gradient(g, alignment, table=table), (grad,))


def test_one_changed_entry_is_noticed():
    alignment = aligned("the quick brown fox")
    table = random_table()
    grad = random_tensor(len(alignment.secondary_spans), 4, seed=2)
    before = transfer_gradient(grad, alignment, table=table)
    key = next(p.counts for p in alignment.parts)
    table.jacobians[key][0, 0, 0] += 1.0
    assert not torch.equal(before, transfer_gradient(grad, alignment, table=table))


@given(text=TEXTS)
def test_every_word_is_that_of_the_loops(text):
    alignment = aligned(text)
    table = random_table()
    embeds = random_tensor(len(alignment.primary_spans), 5, seed=1)
    grad = random_tensor(len(alignment.secondary_spans), 4, seed=2)
    mapped = map_embeddings(embeds, alignment, table=table)
    carried = transfer_gradient(grad, alignment, table=table)
    for part in alignment.cut(at_most(4)).parts:
        ours, theirs = slice(*part.primary), slice(*part.secondary)
        jacobian = table.lookup(*part.counts)
        if jacobian is None or not (part.counts[0] and part.counts[1]):
            assert not carried[ours].any()
            continue
        assert_close(mapped[theirs], reference.forward_word(embeds[ours], jacobian, part.counts[1]))
        assert_close(carried[ours], reference.backward_word(grad[theirs], jacobian, part.counts[0]))


def test_depth_by_the_secondary_alone_pads_and_crops():
    alignment = aligned("the quick extraordinary fox")
    jacobians = {(0, n): random_tensor(5, 4, 4, seed=n) for n in range(1, 5)}
    table = dataclasses.replace(random_table([(1, 1)]), jacobians=jacobians)
    assert adjoint_gap(alignment, table) < 1e-12
    part = next(p for p in alignment.cut(at_most(4)).parts if p.counts[0] != p.counts[1])
    grad = random_tensor(len(alignment.secondary_spans), 4, seed=2)
    carried = transfer_gradient(grad, alignment, table=table)[slice(*part.primary)]
    assert_close(
        carried,
        reference.backward_word(
            grad[slice(*part.secondary)], jacobians[0, part.counts[1]], part.counts[0]
        ),
    )


def test_words_without_common_offset_get_zero_and_are_counted():
    text = "abcdefgh"
    alignment = align(text, [(i, i + 1) for i in range(8)], [(0, 8)])
    carried = transfer_gradient(torch.ones(1, 4).double(), alignment, table=random_table())
    assert count_without_map(alignment, table=random_table()) == 1
    assert not carried.any()
    halves = align(text, [(i, i + 1) for i in range(8)], [(0, 4), (4, 8)])
    carried = transfer_gradient(torch.ones(2, 4).double(), halves, table=random_table())
    assert count_without_map(halves, table=random_table()) == 0
    assert carried.all()


def test_cases_too_rare_for_a_map_are_cut_further():
    alignment = align("abcd", [(0, 1), (1, 2), (2, 4)], [(0, 2), (2, 4)])
    table = random_table([(2, 1), (1, 1)])
    grad = random_tensor(2, 4, seed=2)
    carried = transfer_gradient(grad, alignment, table=table)
    assert count_without_map(alignment, table=table) == 0
    assert_close(carried[:2], reference.backward_word(grad[:1], table.jacobians[2, 1], 2))
    assert_close(carried[2:], reference.backward_word(grad[1:], table.jacobians[1, 1], 1))


def test_random_fallback_is_seeded_scaled_and_exact():
    alignment = align("abcdefgh", [(i, i + 1) for i in range(8)], [(0, 8)])
    table, grad = random_table(), torch.ones(1, 4).double()

    def carried(seed: int) -> torch.Tensor:
        fallback = RandomFallback(seed)
        return transfer_gradient(grad, alignment, table=table, fallback=fallback)

    assert torch.equal(carried(0), carried(0))
    assert not torch.equal(carried(0), carried(1))
    part = alignment.parts[0]
    size = RandomFallback().jacobian(table, part.counts).square().mean().sqrt()
    assert 0.8 < float(size) < 1.2  # the maps of the table are standard normal
    embeds = random_tensor(8, 5, seed=1).requires_grad_()
    mapped = map_embeddings(embeds, alignment, table=table, fallback=RandomFallback())
    (expected,) = torch.autograd.grad(mapped.sum(), embeds)
    assert_close(carried(0), expected)


def test_equal_tokenizers_use_one_map_for_every_token():
    """Exact where the vocabulary's rows are independent, as then V_i V_i^+ = 1."""
    primary = tiny_model(byte_bpe(), 430)
    secondary = tiny_model(byte_bpe(), 4, seed=2)
    table = fit_adapter(primary, secondary, words=[])
    ids, spans = primary.tokenizer.encode_with_offsets("the quick extraordinary fox")
    alignment = align("the quick extraordinary fox", spans, spans)
    mapped = map_embeddings(primary.vocabulary[ids], alignment, table=table)
    assert_close(mapped, secondary.vocabulary[ids], rtol=1e-6, atol=1e-6)
    grad = random_tensor(len(ids), 4, seed=2)
    expected = grad @ table.jacobians[SHARED][..., 0].T
    assert_close(transfer_gradient(grad, alignment, table=table), expected)
    # Ids that are not what their own text is read as: "dog" has no map, "the" has.
    other = align("the dog", [(0, 3), (3, 5), (5, 7)], [(0, 3), (3, 7)])
    carried = transfer_gradient(grad[:2], other, table=table)
    assert_close(carried[0], expected[0])
    assert not carried[1:].any()


def test_nothing_is_modified_and_errors_say_what_to_do():
    alignment = aligned("the fox")
    grad = random_tensor(len(alignment.secondary_spans), 4, seed=2)
    before = grad.clone()
    transfer_gradient(grad, alignment, table=random_table())
    assert torch.equal(grad, before)
    with pytest.raises(AlignmentError, match=r"Got 9 rows, but the alignment has \d tokens"):
        transfer_gradient(torch.zeros(9, 4), aligned("the fox"), table=random_table())
    with pytest.raises(AlignmentError, match="of the primary"):
        map_embeddings(torch.zeros(99, 5), alignment, table=random_table())
