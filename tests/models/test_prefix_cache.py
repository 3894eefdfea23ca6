"""A cache gives the numbers of whole passes, whatever happens to the rows, and computes less."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fuseprompt.models.base import CausalModel, ContinuingModel
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.hub import load
from fuseprompt.models.prefix_cache import PrefixCache
from fuseprompt.text.retokenize import PaddedIds
from tests.tiny import gpt2, llama

both = pytest.mark.parametrize("model", [gpt2, llama], ids=["gpt2", "llama"])

#: Rows of a search: they grow, die, are copied, come back in another order, end elsewhere.
ROUNDS = (
    ["An image of", "two people", "An image of"],
    ["An image of a", "An image of the", "two people in", "two people and"],
    ["An image of the red", "An image of the old", "two people and a", "An image of the red"],
    ["two people and a dog", "An image of the old broken window", "An image of"],
    ["a", "two people", "An image of the red house"],
)


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


@both
def test_every_round_of_a_search_is_exact(model: Any) -> None:
    lm: CausalLM = model()
    assert isinstance(lm, ContinuingModel)
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
    for entry in cache._entries:
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


def test_a_prompt_is_computed_once_for_texts_that_begin_differently() -> None:
    lm = llama().prompted("two people and a dog in front of the red house near the window: a photo")
    texts = ["An image of", "a cat", "two"]
    cache, rows = PrefixCache(lm), ids_of(lm, texts)
    assert_same(cache.next_log_probs(rows), plain(lm, rows))
    assert cache.num_computed == len(lm.begin_ids) + int(rows.lengths.sum())


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
    assert_same(cache.next_log_probs(rows, keep=False), plain(lm, rows))
    assert cache.num_bytes == held


@both
@pytest.mark.parametrize("tokens", [1, 7])
def test_the_size_of_a_pass_does_not_matter(
    model: Any, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuseprompt.models.prefix_cache.TOKENS_PER_PASS", tokens)
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
    assert not isinstance(bare, ContinuingModel)
    cache = PrefixCache(bare)
    for texts in ROUNDS:
        rows = ids_of(bare, texts)
        assert_same(cache.next_log_probs(rows), plain(bare, rows))
    assert cache.num_bytes == 0


def test_no_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one text, got none"):
        PrefixCache(gpt2()).next_log_probs(PaddedIds.from_lists([]))


@pytest.mark.offline
def test_the_offline_model_is_exact_and_goes_on() -> None:
    lm = load("offline:lm", device="cpu")
    assert isinstance(lm, CausalLM)
    assert lm.can_continue
    cache = PrefixCache(lm)
    for texts in ROUNDS[:3]:
        rows = ids_of(lm, texts)
        assert_same(cache.next_log_probs(rows), plain(lm, rows))
