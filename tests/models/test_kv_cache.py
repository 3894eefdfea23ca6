"""Caches give the numbers of whole passes, whatever happens to the rows, and compute less."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fuseprompt.models.base import CausalModel
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.hub import load
from fuseprompt.models.image_text import ClipModel
from fuseprompt.models.kv_cache import PrefixCache, TowerCache, count_shared
from fuseprompt.models.text_tower import TextTower
from fuseprompt.text.retokenize import PaddedIds
from tests.tiny import clip, gpt2, llama

LISTS = st.lists(st.integers(0, 2), min_size=0, max_size=6)

both = pytest.mark.parametrize("model", [gpt2, llama], ids=["gpt2", "llama"])

#: Rows of a search: they grow, die, are copied, come back in another order, end elsewhere.
ROUNDS = (
    ["An image of", "two people", "An image of"],
    ["An image of a", "An image of the", "two people in", "two people and"],
    ["An image of the red", "An image of the old", "two people and a", "An image of the red"],
    ["two people and a dog", "An image of the old broken window", "An image of"],
    ["a", "two people", "An image of the red house"],
)

PREFIXES = ("An image of a", "two people in the old house", "a", "An image of a red")
ENDINGS = (" cat", " dog in", "n", " red, old window", "", " house")


def ids_of(lm: CausalModel, texts: list[str]) -> PaddedIds:
    return PaddedIds.from_lists(lm.tokenizer.encode_batch(texts))


def plain(lm: CausalModel, rows: PaddedIds) -> Tensor:
    """Return the log-probabilities after each row from whole passes of one row."""
    parts = [lm.next_log_probs(torch.tensor([r], dtype=torch.long)) for r in rows.to_lists()]
    return torch.cat(parts)


def assert_same(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


class Bare:
    """A primary that knows nothing of pasts."""

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self.name, self.tokenizer = model.name, model.tokenizer
        self.max_length, self.vocabulary = model.max_length, model.vocabulary
        self.begin_ids, self.end_ids = model.begin_ids, model.end_ids
        self.nll = model.nll

    def next_log_probs(self, token_ids: Tensor) -> Tensor:
        return self._model.next_log_probs(token_ids)


@given(LISTS, LISTS)
def test_the_shared_beginning_ends_at_the_first_difference(left, right) -> None:
    differ = [i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b]
    want = min([*differ, len(left), len(right)])
    ids = [torch.tensor(row, dtype=torch.long) for row in (left, right)]
    assert int(count_shared(*ids)) == want


def test_every_row_is_compared_with_every_other() -> None:
    left, right = torch.tensor([[1, 2, 3], [1, 1, 3]]), torch.tensor([[1, 2], [2, 2], [1, 1]])
    assert count_shared(left[:, None], right[None]).tolist() == [[2, 0, 1], [1, 0, 2]]


@both
def test_every_round_of_a_search_is_exact(model: Any) -> None:
    lm: CausalLM = model()
    assert lm.can_continue
    cache = PrefixCache(lm)
    for texts in ROUNDS:
        rows = ids_of(lm, texts)
        assert_same(cache.next_log_probs(rows), plain(lm, rows))


@both
def test_a_wrong_past_is_found(model: Any) -> None:
    lm: CausalLM = model()
    cache, rows = PrefixCache(lm), ids_of(lm, ROUNDS[1])
    cache.next_log_probs(ids_of(lm, ROUNDS[0]))
    for entry in cache._known:
        for keys, _ in entry.key_values:
            keys.mul_(1.5)
    with pytest.raises(AssertionError, match="not close"):
        assert_same(cache.next_log_probs(rows), plain(lm, rows))


@both
def test_a_token_is_computed_once(model: Any) -> None:
    lm: CausalLM = model()
    cache = PrefixCache(lm)
    row = lm.tokenizer.encode("An image of the old broken window")
    cache.next_log_probs(PaddedIds.from_lists([row[:3]] * 4))
    assert cache.num_computed == len(lm.begin_ids) + 3
    for n in range(4, len(row)):
        cache.next_log_probs(PaddedIds.from_lists([[*row[: n - 1], t] for t in (5, 6, row[n - 1])]))
    assert cache.num_computed == len(lm.begin_ids) + 3 + 3 * (len(row) - 4)


@both
def test_pasts_are_never_changed(model: Any) -> None:
    lm: CausalLM = model()
    ids = torch.tensor([lm.tokenizer.encode("a cat sleeps beside")[:4]])
    _, past = lm.continue_from(ids[:, :2], None)
    copies = [(keys.clone(), values.clone()) for keys, values in past]
    first, _ = lm.continue_from(ids[:, 2:], past)
    again, grown = lm.continue_from(ids[:, 2:], past)
    assert torch.equal(first, again)
    assert all(
        torch.equal(a, b)
        for p, c in zip(past, copies, strict=True)
        for a, b in zip(p, c, strict=True)
    )
    assert {keys.shape[2] for keys, _ in grown} == {4}


@both
def test_texts_without_a_token_are_predicted(model: Any) -> None:
    lm: CausalLM = model()
    rows = PaddedIds.from_lists([[], lm.tokenizer.encode("a cat"), []])
    cache = PrefixCache(lm)
    assert_same(cache.next_log_probs(rows), plain(lm, rows))
    assert_same(
        cache.next_log_probs(rows[torch.tensor([0, 2])]), plain(lm, rows)[:2:2].expand(2, -1)
    )


@both
def test_memory_is_bounded_and_what_was_dropped_is_computed_again(model: Any) -> None:
    lm: CausalLM = model()
    for room in (0, 3000):
        cache = PrefixCache(lm, max_bytes=room)
        for texts in ROUNDS:
            rows = ids_of(lm, texts)
            assert_same(cache.next_log_probs(rows), plain(lm, rows))
            assert cache.num_bytes <= room


@both
def test_texts_that_will_not_grow_leave_nothing_behind(model: Any) -> None:
    lm: CausalLM = model()
    cache = PrefixCache(lm)
    cache.next_log_probs(ids_of(lm, ROUNDS[0]))
    held, rows = cache.num_bytes, ids_of(lm, ROUNDS[1])
    assert_same(cache.next_log_probs(rows, keep=""), plain(lm, rows))
    assert cache.num_bytes == held


@both
@pytest.mark.parametrize("tokens", [1, 7])
def test_the_size_of_a_pass_does_not_matter(
    model: Any, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuseprompt.models.kv_cache.TOKENS_PER_PASS", tokens)
    lm: CausalLM = model()
    cache = PrefixCache(lm)
    for texts in ROUNDS:
        rows = ids_of(lm, texts)
        assert_same(cache.next_log_probs(rows), plain(lm, rows))


def test_a_model_that_runs_out_of_memory_gets_smaller_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lm = gpt2()
    run, sizes = CausalLM.continue_from, []

    def run_small(self: CausalLM, token_ids: Tensor, past: Any) -> Any:
        if len(token_ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        sizes.append(len(token_ids))
        return run(self, token_ids, past)

    monkeypatch.setattr(CausalLM, "continue_from", run_small)
    cache = PrefixCache(lm)
    for texts in ROUNDS:
        rows = ids_of(lm, texts)
        assert_same(cache.next_log_probs(rows), plain(lm, rows))
    assert max(sizes) == 2


def test_a_model_without_pasts_computes_whole_rows() -> None:
    bare = Bare(gpt2())
    cache = PrefixCache(bare)
    for texts in ROUNDS:
        rows = ids_of(bare, texts)
        assert_same(cache.next_log_probs(rows), plain(bare, rows))
    assert cache.num_bytes == 0


def test_no_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one text, got none"):
        PrefixCache(gpt2()).next_log_probs(PaddedIds.from_lists([]))


def started() -> TowerCache:
    cache = clip().start_cache()
    assert cache is not None
    return cache


def prefix_ids(prefixes: tuple[str, ...] = PREFIXES) -> PaddedIds:
    tokenizer = clip().tokenizer
    return PaddedIds.from_lists([[*tokenizer.prefix_ids, *tokenizer.encode(s)] for s in prefixes])


def framed(texts: list[str]) -> PaddedIds:
    tokenizer = clip().tokenizer
    return PaddedIds.from_lists([tokenizer.add_special_tokens(tokenizer.encode(t)) for t in texts])


def candidates(prefixes: tuple[str, ...] = PREFIXES) -> tuple[PaddedIds, Tensor]:
    """Return all prefixes with all endings in a mixed order, and the prefix of each."""
    rows = torch.arange(len(prefixes) * len(ENDINGS)) * 7 % (len(prefixes) * len(ENDINGS))
    texts = [prefixes[i // len(ENDINGS)] + ENDINGS[i % len(ENDINGS)] for i in rows.tolist()]
    return framed(texts), rows // len(ENDINGS)


def singly(ids: PaddedIds) -> Tensor:
    return torch.cat([clip().outputs(ids[torch.tensor([i])]) for i in range(len(ids))])


def test_features_are_those_of_whole_texts_one_by_one() -> None:
    ids, rows = candidates()
    cache = started()
    assert_same(cache.outputs(ids, prefix_ids(), rows), singly(ids))


def test_wrong_keys_are_found() -> None:
    ids, rows = candidates()
    cache = started()
    cache.outputs(ids, prefix_ids(), rows)
    for keys, _ in cache._key_values:
        keys.mul_(1.5)
    with pytest.raises(AssertionError, match="not close"):
        assert_same(cache.outputs(ids, prefix_ids(), rows), singly(ids))


def test_only_what_follows_the_prefix_is_computed() -> None:
    ids, rows = candidates(PREFIXES[:1])
    cache, prefixes = started(), prefix_ids(PREFIXES[:1])
    cache.outputs(ids, prefixes, rows)
    kept = clip().tokenizer.encode("An image of an")
    new = ids.lengths - prefixes.lengths[0]
    # "An image of an" changes the last word; without an ending only the end token is new.
    changed = len(kept) - sum(
        a == b for a, b in zip(kept, clip().tokenizer.encode(PREFIXES[0]), strict=False)
    )
    assert int(prefixes.lengths.sum() + new.sum()) <= cache.num_computed
    assert cache.num_computed <= int(prefixes.lengths.sum() + new.sum()) + changed
    assert cache.num_computed < int(ids.lengths.sum())


def test_prefixes_are_computed_once_for_all_rounds_of_a_step() -> None:
    ids, rows = candidates()
    cache = started()
    first = cache.outputs(ids, prefix_ids(), rows)
    computed = cache.num_computed
    again = cache.outputs(ids, prefix_ids(), rows)
    assert torch.equal(first, again)
    assert cache.num_computed == 2 * computed - int(prefix_ids().lengths.sum())


def test_beams_may_die_be_copied_and_change_places() -> None:
    cache = started()
    for prefixes in (
        PREFIXES,
        PREFIXES[::-1],
        (PREFIXES[2], PREFIXES[2]),
        ("An image of a cat in", PREFIXES[0]),
    ):
        ids, rows = candidates(prefixes)
        assert_same(cache.outputs(ids, prefix_ids(prefixes), rows), singly(ids))


def test_texts_that_share_nothing_are_computed_as_usual() -> None:
    ids = framed(["a red house", "two people"])
    cache = started()
    got = cache.outputs(ids, prefix_ids(("a red", "two")), torch.tensor([0, 1]))
    assert torch.equal(got, clip().outputs(ids))
    assert cache.num_bytes == 0


def test_a_small_budget_works_through_prefixes_in_parts() -> None:
    ids, rows = candidates()
    tower = clip()._tower
    assert tower is not None
    for prefixes_at_once in (1, 2, 3):
        room = tower.token_bytes * prefix_ids().ids.shape[1] * prefixes_at_once
        cache = TowerCache(tower, clip().outputs, max_bytes=room)
        assert_same(cache.outputs(ids, prefix_ids(), rows), singly(ids))
        assert cache.num_bytes <= room


def test_a_tower_that_runs_out_of_memory_gets_smaller_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, sizes = TextTower.go_on, []

    def run_small(self: TextTower, token_ids: Tensor, *more: Tensor) -> Tensor:
        if len(token_ids) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        sizes.append(len(token_ids))
        return run(self, token_ids, *more)

    monkeypatch.setattr(TextTower, "go_on", run_small)
    monkeypatch.setattr(clip().pass_size, "tokens", clip().pass_size.tokens)
    ids, rows = candidates()
    assert_same(started().outputs(ids, prefix_ids(), rows), singly(ids))
    assert 1 < max(sizes) <= 3


def test_a_model_that_reads_padding_has_no_cache() -> None:
    padded = object.__new__(ClipModel)
    padded.padded_to = 64
    assert padded._find_tower() is None
    padded._tower = None
    assert padded.start_cache() is None


@pytest.mark.offline
def test_the_offline_model_is_exact_and_goes_on() -> None:
    lm = load("offline:lm", device="cpu")
    assert isinstance(lm, CausalLM)
    assert lm.can_continue
    cache = PrefixCache(lm)
    for texts in ROUNDS[:3]:
        rows = ids_of(lm, texts)
        assert_same(cache.next_log_probs(rows), plain(lm, rows))


@both
def test_a_text_whose_continuation_was_scored_is_predicted_without_computing(model: Any) -> None:
    lm: CausalLM = model()
    cache, begun = PrefixCache(lm), ids_of(lm, ["two people", "a cat sleeps"])
    grown = [[*row, token] for row in begun.to_lists() for token in (20, 21, 22)]
    following = [
        [*lm.begin_ids, *row, 30, 31][: len(lm.begin_ids) + len(row) + 1 + i % 2]
        for i, row in enumerate(grown)
    ]
    counted = torch.tensor([1 + i % 2 for i in range(len(grown))])
    whole = PaddedIds.from_lists(following)
    assert_same(cache.continuation_nll(whole, counted, begun), lm.continuation_nll(whole, counted))
    computed = cache.num_computed
    rows = PaddedIds.from_lists([grown[i] for i in (4, 0, 2)])
    assert_same(cache.next_log_probs(rows), plain(lm, rows))
    assert cache.num_computed == computed
    # What was recalled is gone on from.
    rows = PaddedIds.from_lists([[*row, 40] for row in rows.to_lists()])
    assert_same(cache.next_log_probs(rows), plain(lm, rows))
    assert cache.num_computed == computed + len(rows)
