"""Likelihoods of edited texts are those of whole ones, whatever the edit, and cost less."""

from collections.abc import Sequence
from copy import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.edit_cache import EditCache
from fuseprompt.text.retokenize import PaddedIds
from tests.models.test_kv_cache import assert_same, both, ids_of
from tests.tiny import gpt2

#: Texts that are read, and edits of them: the row, and what it became.
ORIGINS = ("An image of a happy dog.", "two people walking", "a")
EDITED = (
    (0, "An image of a red dog."),
    (0, "An image of a happy dog at night."),
    (0, "An image"),
    (0, "two people"),
    (1, "two old people walking"),
    (1, "two people walking"),
    (2, "a cat sleeps beside the broken window"),
    (2, "the"),
)


def edits_of(model: CausalLM, edited: Sequence[tuple[int, str]] = EDITED) -> tuple[Any, ...]:
    """Return an edit cache that has read the origins, ids of edited texts, and their rows."""
    cache = EditCache(model)
    cache.read(ids_of(model, list(ORIGINS)))
    rows = torch.tensor([row for row, _ in edited])
    return cache, ids_of(model, [text for _, text in edited]), rows


def assert_is_nll(model: CausalLM, ids: PaddedIds, nats: Tensor, after: Tensor) -> None:
    ends = -torch.logsumexp(after[:, model.end_ids], dim=1)
    for own, length, each, end in zip(
        ids.to_lists(), ids.lengths.tolist(), nats, ends, strict=True
    ):
        (want,) = model.nll([own], [0])
        begun = length - (len(want) - 1)  # A first token without likelihood costs nothing.
        assert not each[:begun].any()
        assert not each[length:].any()
        assert_same(each[begun:length], want[:-1].double())
        assert_same(end, want[-1])


@both
def test_edited_texts_have_the_likelihoods_of_whole_ones(model: Any) -> None:
    lm: CausalLM = model()
    cache, ids, rows = edits_of(lm)
    assert_is_nll(lm, ids, *cache.nll(ids, rows))


@both
def test_edits_at_all_places_compute_less_than_whole_texts(model: Any) -> None:
    lm: CausalLM = model()
    cache, _, _ = edits_of(lm)
    own = lm.tokenizer.encode(ORIGINS[0])
    places = [place for place in range(len(own)) for _ in range(8)]
    ids = PaddedIds.from_lists([[*own[:p], 20, *own[p + 1 :]] for p in places])
    before = cache.num_computed
    assert_is_nll(lm, ids, *cache.nll(ids, torch.zeros(len(ids), dtype=torch.long)))
    whole = len(ids) * (len(own) + len(lm.begin_ids))
    assert cache.num_computed - before == 8 * sum(range(1, len(own) + 1)) < 0.65 * whole


@both
def test_what_is_read_is_the_likelihood_at_each_place(model: Any) -> None:
    lm: CausalLM = model()
    rows = ids_of(lm, list(ORIGINS))
    log_probs = EditCache(lm).read(rows)
    for own, each in zip(rows.to_lists(), log_probs, strict=True):
        for place in range(len(own) + 1):
            if place or lm.begin_ids:
                begun = torch.tensor([own[:place]], dtype=torch.long)
                assert_same(each[place], lm.next_log_probs(begun)[0])
            else:
                assert not each[0].any()


@both
@given(st.data())
@settings(max_examples=25)
def test_any_rows_have_the_likelihoods_of_whole_ones(model: Any, data: st.DataObject) -> None:
    lm: CausalLM = model()
    row = st.lists(st.integers(0, 3), min_size=1, max_size=7)
    cache = EditCache(lm)
    origins = data.draw(st.lists(row, min_size=1, max_size=3))
    cache.read(PaddedIds.from_lists(origins))
    # Origins may be wrong: what a row shares with one is looked up.
    edited = data.draw(st.lists(row, min_size=1, max_size=6))
    of = data.draw(
        st.lists(st.integers(0, len(origins) - 1), min_size=len(edited), max_size=len(edited))
    )
    ids = PaddedIds.from_lists(edited)
    assert_is_nll(lm, ids, *cache.nll(ids, torch.tensor(of)))


@both
def test_an_edit_at_the_end_computes_the_end_alone(model: Any) -> None:
    lm: CausalLM = model()
    cache, _, _ = edits_of(lm)
    own = lm.tokenizer.encode(ORIGINS[0])
    ids = PaddedIds.from_lists([[*own[:-1], token] for token in range(20, 28)])
    before = cache.num_computed
    cache.nll(ids, torch.zeros(8, dtype=torch.long))
    assert cache.num_computed - before == 8  # the new token of each


def test_a_model_that_keeps_nothing_computes_whole_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = gpt2()
    monkeypatch.setattr(lm, "can_continue", False)
    cache, ids, rows = edits_of(lm)
    before = cache.num_computed
    assert_is_nll(lm, ids, *cache.nll(ids, rows))
    assert cache.num_computed - before >= int(ids.lengths.sum())


@both
def test_wrong_keys_and_values_of_an_origin_are_found(model: Any) -> None:
    lm: CausalLM = model()
    cache, ids, rows = edits_of(lm)
    cache._key_values = tuple((keys * 1.5, values) for keys, values in cache._key_values)
    with pytest.raises(AssertionError):
        assert_is_nll(lm, ids, *cache.nll(ids, rows))


def test_small_passes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = gpt2()
    cache, ids, rows = edits_of(lm)
    want = cache.nll(ids, rows)
    monkeypatch.setattr("fuseprompt.models.edit_cache.TOKENS_PER_PASS", 9)
    monkeypatch.setattr("fuseprompt.models.edit_cache.PACKED_TOKENS", 9)
    small, _, _ = edits_of(lm)
    for got, whole in zip(small.nll(ids, rows), want, strict=True):
        assert_same(got, whole)


@both
def test_texts_that_were_scored_are_read_without_computing_them_again(model: Any) -> None:
    lm: CausalLM = model()
    cache, ids, rows = edits_of(lm)
    cache.nll(ids, rows)
    before = cache.num_computed
    for again in (ids[torch.tensor([5, 1, 1])], ids[torch.tensor([1])]):  # then one that was read
        fresh = EditCache(lm)
        got, want = cache.read(again), fresh.read(again)
        for one, other, length in zip(got, want, again.lengths.tolist(), strict=True):
            assert_same(one[: length + 1], other[: length + 1])
        edited = PaddedIds.from_lists([[*row[:-1], 20, 21] for row in again.to_lists()])
        assert cache.num_computed == before
        every = torch.arange(len(again))
        for one, other in zip(cache.nll(edited, every), fresh.nll(edited, every), strict=True):
            assert_same(one, other)
        before = cache.num_computed


@both
def test_a_model_that_packs_no_endings_computes_whole_texts(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm: CausalLM = model()
    monkeypatch.setitem(vars(lm), "can_pack", False)
    cache, ids, rows = edits_of(lm)
    before = cache.num_computed
    assert_is_nll(lm, ids, *cache.nll(ids, rows))
    assert cache.num_computed - before >= int(ids.lengths.sum())


@both
@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids"])
def test_a_model_that_ignores_what_packing_needs_does_not_pack(
    model: Any, ignored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm: CausalLM = model()
    assert lm.can_pack
    plain = lm._last_logits

    def compute(ids: Tensor, count: int, **more: Any) -> Tensor:
        more.pop(ignored, None)
        return plain(ids, count, **more)

    fresh: CausalLM = copy(lm)
    del vars(fresh)["can_pack"]
    monkeypatch.setitem(vars(fresh), "_last_logits", compute)
    assert not fresh.can_pack
