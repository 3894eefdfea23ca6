"""A tower's cache gives the features of whole passes for any texts, and computes less."""

import pytest
import torch
from torch import Tensor

from fuseprompt.models.base import StemCache, StemSharing
from fuseprompt.models.image_text import ClipModel
from fuseprompt.models.text_tower import TextTower
from fuseprompt.models.tower_cache import TowerCache
from fuseprompt.text.retokenize import PaddedIds
from tests.tiny import clip, sentence_encoder

STEMS = ("An image of a", "two people in the old house", "a", "An image of a red")
ENDINGS = (" cat", " dog in", "n", " red, old window", "", " house")


def started() -> TowerCache:
    cache = clip().start_cache()
    assert cache is not None
    return cache


def stem_ids(stems: tuple[str, ...] = STEMS) -> PaddedIds:
    tokenizer = clip().tokenizer
    return PaddedIds.from_lists([[*tokenizer.prefix_ids, *tokenizer.encode(s)] for s in stems])


def framed(texts: list[str]) -> PaddedIds:
    tokenizer = clip().tokenizer
    return PaddedIds.from_lists([tokenizer.frame(tokenizer.encode(t)) for t in texts])


def candidates(stems: tuple[str, ...] = STEMS) -> tuple[PaddedIds, Tensor]:
    """Return all stems with all endings in a mixed order, and the stem of each."""
    rows = torch.arange(len(stems) * len(ENDINGS)) * 7 % (len(stems) * len(ENDINGS))
    texts = [stems[i // len(ENDINGS)] + ENDINGS[i % len(ENDINGS)] for i in rows.tolist()]
    return framed(texts), rows // len(ENDINGS)


def assert_same(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def singly(ids: PaddedIds) -> Tensor:
    return torch.cat([clip().outputs(ids[torch.tensor([i])]) for i in range(len(ids))])


def test_features_are_those_of_whole_texts_one_by_one() -> None:
    ids, rows = candidates()
    cache = started()
    assert isinstance(cache, StemCache)
    assert_same(cache.outputs(ids, stem_ids(), rows), singly(ids))


def test_wrong_keys_are_found() -> None:
    ids, rows = candidates()
    cache = started()
    cache.outputs(ids, stem_ids(), rows)
    for keys, _ in cache._key_values:
        keys.mul_(1.5)
    with pytest.raises(AssertionError, match="not close"):
        assert_same(cache.outputs(ids, stem_ids(), rows), singly(ids))


def test_only_what_follows_the_stem_is_computed() -> None:
    ids, rows = candidates(STEMS[:1])
    cache, stems = started(), stem_ids(STEMS[:1])
    cache.outputs(ids, stems, rows)
    kept = clip().tokenizer.encode("An image of an")
    new = ids.lengths - stems.lengths[0]
    # "An image of an" changes the last word; without an ending only the end token is new.
    changed = len(kept) - sum(
        a == b for a, b in zip(kept, clip().tokenizer.encode(STEMS[0]), strict=False)
    )
    assert int(stems.lengths.sum() + new.sum()) <= cache.num_computed
    assert cache.num_computed <= int(stems.lengths.sum() + new.sum()) + changed
    assert cache.num_computed < int(ids.lengths.sum())


def test_stems_are_computed_once_for_all_rounds_of_a_step() -> None:
    ids, rows = candidates()
    cache = started()
    first = cache.outputs(ids, stem_ids(), rows)
    computed = cache.num_computed
    again = cache.outputs(ids, stem_ids(), rows)
    assert torch.equal(first, again)
    assert cache.num_computed == 2 * computed - int(stem_ids().lengths.sum())


def test_beams_may_die_be_copied_and_change_places() -> None:
    cache = started()
    for stems in (STEMS, STEMS[::-1], (STEMS[2], STEMS[2]), ("An image of a cat in", STEMS[0])):
        ids, rows = candidates(stems)
        assert_same(cache.outputs(ids, stem_ids(stems), rows), singly(ids))


def test_a_stem_of_one_text_joins_the_stem_that_fits_best() -> None:
    stems = (*STEMS[:2], "An image of a red house")
    texts = ["An image of a cat", "An image of a dog", "two people in the old house a"]
    ids, rows = framed([*texts, "An image of a red house now"]), torch.tensor([0, 0, 1, 2])
    cache = started()
    assert_same(cache.outputs(ids, stem_ids(stems), rows), singly(ids))
    used = stem_ids(stems).lengths[0]
    assert cache.num_computed < int(used + ids.lengths.sum() - 2 * used)


def test_texts_that_share_nothing_are_computed_as_usual() -> None:
    ids = framed(["a red house", "two people"])
    cache = started()
    got = cache.outputs(ids, stem_ids(("a red", "two")), torch.tensor([0, 1]))
    assert torch.equal(got, clip().outputs(ids))
    assert cache.num_bytes == 0


def test_a_small_budget_works_through_stems_in_parts() -> None:
    ids, rows = candidates()
    tower = clip()._tower
    assert tower is not None
    for stems_at_once in (1, 2, 3):
        room = tower.token_bytes * stem_ids().ids.shape[1] * stems_at_once
        cache = TowerCache(tower, clip().outputs, max_bytes=room)
        assert_same(cache.outputs(ids, stem_ids(), rows), singly(ids))
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
    monkeypatch.setattr(clip()._held.pass_size, "tokens", clip()._held.pass_size.tokens)
    ids, rows = candidates()
    assert_same(started().outputs(ids, stem_ids(), rows), singly(ids))
    assert 1 < max(sizes) <= 3


def test_a_model_that_reads_padding_has_no_cache() -> None:
    padded = object.__new__(ClipModel)
    padded.padded_to = 64
    assert padded._find_tower() is None
    padded._tower = None
    assert padded.start_cache() is None


def test_other_secondaries_share_no_stems() -> None:
    assert isinstance(clip(), StemSharing)
    assert not isinstance(sentence_encoder(), StemSharing)
