"""A tower goes on from a prefix only where that gives its own features, and is left as it was."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fuseprompt.models.batching import PassSize
from fuseprompt.models.text_tower import TextTower, _Pass
from fuseprompt.text.retokenize import PaddedIds
from tests.tiny import clip

CPU = torch.device("cpu")


def tower_of(compute: Any) -> TextTower:
    config = clip().text_side.config
    return TextTower(compute, config, PassSize(4096, CPU))


def row() -> list[int]:
    return clip().tokenizer.add_special_tokens(clip().tokenizer.encode("An image of a red house."))


def test_clip_goes_on_from_a_prefix() -> None:
    assert tower_of(clip()._compute).can_continue(torch.tensor([row()]))


def test_a_tower_that_sees_only_the_rest_is_found() -> None:
    def forgetful(ids: Tensor, **more: Any) -> Tensor:
        output = clip()._compute(ids, **more)
        return output if ids.shape[1] == len(row()) else output.roll(1, dims=-1)

    assert not tower_of(forgetful).can_continue(torch.tensor([row()]))


def test_a_tower_that_takes_no_prefixes_is_found() -> None:
    def strict(ids: Tensor) -> Tensor:
        return clip()._compute(ids)

    assert not tower_of(strict).can_continue(torch.tensor([row()]))


def test_the_attention_is_the_usual_one_afterwards() -> None:
    def fail(ids: Tensor, **_: Any) -> Tensor:
        raise ArithmeticError

    config, prefixes = clip().text_side.config, PaddedIds.from_lists([row()[:3]])
    usual, before = config._attn_implementation, clip().outputs(PaddedIds.from_lists([row()]))
    tower_of(clip()._compute).start(prefixes)
    with pytest.raises(ArithmeticError):
        tower_of(fail).start(prefixes)
    assert config._attn_implementation == usual
    assert torch.equal(clip().outputs(PaddedIds.from_lists([row()])), before)


def test_padding_behind_a_prefix_means_nothing() -> None:
    tower, ids = tower_of(clip()._compute), row()
    alone = tower.start(PaddedIds.from_lists([ids[:3]]))
    padded = tower.start(PaddedIds.from_lists([ids[:3], ids[:6]]))
    for (keys, values), (more_keys, more_values) in zip(alone, padded, strict=True):
        torch.testing.assert_close(more_keys[:1, :, :3], keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(more_values[:1, :, :3], values, atol=1e-5, rtol=1e-5)
    assert tower.token_bytes == sum(2 * keys[0, :, 0].numel() * 4 for keys, _ in alone)


def test_attention_in_place_is_attention_over_copies() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    prefixes = ((draw(3, 2, 5, 4), draw(3, 2, 5, 4)),)
    rows = torch.tensor([2, 2, 0, 2])
    visible = torch.ones(4, 1, 3, 8, dtype=torch.bool).tril(5)
    visible[1, :, :, 2:5] = False
    own = [draw(4, 2, 3, 4) for _ in range(3)]
    copies = _Pass(prefixes, rows, visible).attend(*own, None)
    in_place = _Pass(prefixes, rows, visible, [(2, 2), (0, 1), (2, 1)]).attend(*own, None)
    torch.testing.assert_close(in_place, copies, atol=1e-6, rtol=1e-5)
    wrong = _Pass(prefixes, rows, visible, [(0, 2), (0, 2)]).attend(*own, None)
    assert not torch.allclose(wrong, copies, atol=1e-3)
