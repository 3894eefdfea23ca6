"""The baseline computes what it claims: the paper's maps, at its price."""

import torch
from torch.testing import assert_close

from fuseprompt.fuse import t_product
from fuseprompt.methods.published_fit import PublishedModel, circulant_pinv, fit_published
from tests.fuse.tensors import random_tensor
from tests.fuse.tiny import TinyModel, made_up_words, tiny_pair
from tests.reference.fuse import word_tensor
from tests.reference.t_pinv import t_pinv


def published(model: TinyModel) -> PublishedModel:
    """Return a tiny model as the published procedure takes it."""
    return PublishedModel(model.tokenizer.encode, model.vocabulary)


def test_pseudo_inverse_is_that_of_the_library():
    for tubes in (1, 2, 3, 4):
        a = random_tensor(7, 3, tubes, seed=tubes)
        assert_close(circulant_pinv(a), t_pinv(a))
    deficient = random_tensor(5, 2, 3, seed=0).repeat_interleave(2, dim=1)
    assert_close(circulant_pinv(deficient), t_pinv(deficient))


def test_maps_are_least_squares_over_cut_words():
    primary, secondary = tiny_pair()
    words = made_up_words(200)
    maps = fit_published(published(primary), published(secondary), words=words, max_tokens=3)
    assert set(maps) == {1, 2, 3}
    rows = [(primary.tokenizer.encode(" " + w), secondary.tokenizer.encode(" " + w)) for w in words]
    for length, found in maps.items():
        case = [(ours[:length], theirs) for ours, theirs in rows if len(theirs) == length]
        v_i = word_tensor([ours for ours, _ in case], primary.vocabulary, length)
        v_j = word_tensor([theirs for _, theirs in case], secondary.vocabulary, length)
        assert_close(found, t_product(t_pinv(v_i), v_j))


def test_words_per_case_and_seed():
    primary, secondary = map(published, tiny_pair())
    words = made_up_words(200)
    one, again, other = (
        fit_published(primary, secondary, words=words, max_tokens=2, words_per_case=9, seed=seed)
        for seed in (0, 0, 1)
    )
    assert torch.equal(one[2], again[2])
    assert not torch.equal(one[2], other[2])
