"""A causal text tower whose passes can start behind a beginning that is already known (a *stem*).

In a causal tower such as CLIP's the beginning of a text does not depend on its end, so the keys and
values of a stem serve every text that begins with it. The library has no cache for such towers:
for a pass, the tower's attention is exchanged for one that also sees the stem. Whether that is
right for a model is tried out when it is loaded (`shares_stems`), not looked up. Nothing is
remembered here. Read next: `fuseprompt.models.tower_cache`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.key_values import KeyValues, count_bytes
from fuseprompt.models.passes import PassSize
from fuseprompt.text.retokenize import PaddedIds

#: Largest difference between a normalised feature with stems and without.
TOLERANCE: Final = 1e-4

#: Under this name the library knows the attention below.
_ATTENTION: Final = "fuseprompt_stems"


@final
@dataclass(eq=False)
class _Pass:
    """What attention has to know during one forward pass; layers are called in order.

    Attributes:
        stems: Keys and values of the stems, or () to compute some.
        rows: Stem of each row of the pass, shape (b,).
        visible: Which keys each position sees: its stem's, then its own; shape (b, 1, s, t + s).
        spans: Where copies are dear: the runs of rows with one stem, as (stem, number of rows).
        key_values: Keys and values of the pass's own tokens, filled layer by layer.
        layer: Layers that were called.
    """

    stems: KeyValues
    rows: Int[Tensor, " b"]
    visible: Tensor
    spans: list[tuple[int, int]] = field(default_factory=list)
    key_values: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    layer: int = 0

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
        """Return the attention of one layer, shape (b, s, heads, d)."""
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        if self.spans:
            attended = self._attend_in_place(query, keys, values, scale)
        else:
            if self.stems:
                stem_keys, stem_values = self.stems[self.layer]
                keys = torch.cat([stem_keys[self.rows], keys], dim=2)
                values = torch.cat([stem_values[self.rows], values], dim=2)
            else:
                self.key_values.append((keys, values))
            attended = torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=self.visible, scale=scale
            ).transpose(1, 2)
        self.layer += 1
        return attended.contiguous()

    @cached_property
    def _penalty(self) -> Float[Tensor, "b 1 s u"]:
        """What is added to the score of each key: nothing, or what hides it."""
        return torch.zeros(self.visible.shape).masked_fill_(~self.visible, -float("inf"))

    def _attend_in_place(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Float[Tensor, "b s h d"]:
        """Attend without a copy of a stem for each of its rows: a quarter of the time on a CPU."""
        stem_keys, stem_values = self.stems[self.layer]
        width = stem_keys.shape[2]
        # Few keys of their own, so that sums are quicker than many tiny matrix products.
        own = (query[:, :, :, None] * keys[:, :, None]).sum(dim=-1)
        scores = torch.cat([self._times_stem(query, stem_keys.mT), own], dim=-1)
        scores.mul_(scale).add_(self._penalty)
        # The library's softmax is slow where the last axis is short.
        weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
        weights = (weights / weights.sum(dim=-1, keepdim=True)).transpose(1, 2)  # (b, s, h, u)
        attended = self._times_stem(weights[..., :width].transpose(1, 2), stem_values)
        attended = attended.transpose(1, 2).contiguous()
        for i in range(keys.shape[2]):
            attended.addcmul_(weights[..., width + i, None], values[:, None, :, i])
        return attended

    def _times_stem(
        self, left: Float[Tensor, "b h s k"], right: Float[Tensor, "n h k m"]
    ) -> Float[Tensor, "b h s m"]:
        """Multiply each row with the matrices of its stem, all rows of a stem at once."""
        parts = []
        for (stem, count), part in zip(
            self.spans, torch.split(left, [count for _, count in self.spans]), strict=True
        ):
            heads, length = part.shape[1:3]
            flat = part.transpose(0, 1).reshape(heads, count * length, -1) @ right[stem]
            parts.append(flat.view(heads, count, length, -1).transpose(0, 1))
        return torch.cat(parts)


@final
class TextTower:
    """A text tower whose passes can start behind a stem.

    Args:
        compute: From ids, shape (b, s), and keywords `position_ids` and `stem_pass`, which reach
            the tower's own layers, to features, shape (b, o).
        config: The tower's configuration, which names its attention.
        device: Where it is.
        size: How large its passes may be.

    Attributes:
        token_bytes: Bytes of keys and values of one token; 0 before any were computed.
    """

    def __init__(
        self,
        compute: Callable[..., Float[Tensor, "b o"]],
        config: Any,
        *,
        device: torch.device,
        size: PassSize,
    ) -> None:
        self._compute = compute
        self._config = config
        self.device = device
        self.size = size
        self.token_bytes = 0

    @torch.no_grad()
    def start(self, stems: PaddedIds) -> KeyValues:
        """Return keys and values of stems; those beyond a stem's length mean nothing."""
        ids = stems.ids.to(self.device)
        length = ids.shape[1]
        causal = torch.ones(1, 1, length, length, dtype=torch.bool, device=self.device).tril()
        now = _Pass((), torch.arange(len(ids), device=self.device), causal)
        positions = torch.arange(length, device=self.device)[None]
        with _attention(self._config):
            self._compute(ids, position_ids=positions, stem_pass=now)
        self.token_bytes = count_bytes(now.key_values) // ids.numel()
        return tuple(now.key_values)

    @torch.no_grad()
    def go_on(
        self,
        token_ids: Int[Tensor, "b s"],
        stems: KeyValues,
        rows: Int[Tensor, " b"],
        kept: Int[Tensor, " b"],
    ) -> Float[Tensor, "b o"]:
        """Return the features of texts from their tokens after the stem.

        Args:
            token_ids: Tokens after the kept ones, shape (b, s).
            stems: Keys and values of all stems.
            rows: Stem of each text, shape (b,); quickest where texts of one stem stand together.
            kept: Tokens of the stem that each text begins with, shape (b,).
        """
        spans = _runs(rows) if self.device.type == "cpu" else []
        ids, rows, kept = (t.to(self.device) for t in (token_ids, rows, kept))
        length, width = ids.shape[1], stems[0][0].shape[2]
        at = torch.arange(max(length, width), device=self.device)
        known = (at[:width] < kept[:, None])[:, None, None].expand(-1, 1, length, -1)
        own = (at[:length] <= at[:length, None]).expand(len(ids), 1, -1, -1)
        now = _Pass(stems, rows, torch.cat([known, own], dim=-1), spans)
        positions = kept[:, None] + at[:length]
        with _attention(self._config):
            return self._compute(ids, position_ids=positions, stem_pass=now).float()


def _runs(rows: Int[Tensor, " b"]) -> list[tuple[int, int]]:
    """Return each run of equal numbers, and how long it is."""
    values, counts = torch.unique_consecutive(rows, return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))


@contextmanager
def _attention(config: Any) -> Iterator[None]:
    """Make a tower attend as `_Pass` says, for the time being."""
    from transformers import AttentionInterface

    AttentionInterface.register(_ATTENTION, _attend)
    usual = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = usual


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    stem_pass: _Pass,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend as `AttentionInterface` wants it; there is no padding, so no mask is needed."""
    del module, attention_mask
    return stem_pass.attend(query, key, value, scaling), None


def shares_stems(tower: TextTower, whole: Callable[[Tensor], Tensor], row: list[int]) -> bool:
    """Try out whether going on from a stem gives the features of the whole text.

    Args:
        tower: The tower.
        whole: From ids, shape (b, s), to features, computed as usual.
        row: Framed ids of a text of several tokens.

    Returns:
        Whether all features agree, for two lengths of what is kept.
    """
    ids = torch.tensor([row, row])
    cuts = torch.tensor([1, len(row) // 2])
    try:
        stems = tower.start(PaddedIds(ids[:, : len(row) - 1], torch.full((2,), len(row) - 1)))
        zero = torch.zeros(1, dtype=torch.long)
        got = torch.cat([tower.go_on(ids[:1, cut:], stems, zero, cut[None]) for cut in cuts])
        with torch.no_grad():
            want = whole(ids.to(tower.device)).float()
        return bool(((got - want).abs() <= TOLERANCE).all())
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        # A tower that takes no such attention or positions, or needs all tokens at once.
        return False
