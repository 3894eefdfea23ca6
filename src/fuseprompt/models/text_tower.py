"""A causal text tower whose passes can start after a beginning that is known (a *prefix*).

In a causal tower such as CLIP's the beginning of a text does not depend on its end, so the keys and
values of a prefix serve every text that begins with it. The library has no cache for such towers:
for a pass, the tower's attention is exchanged for one that also sees the prefix.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import KeyValues, count_bytes
from fuseprompt.models.batching import PassSize, full_precision
from fuseprompt.text.retokenize import PaddedIds

#: The name of the attention below in transformers.
_ATTENTION: Final = "fuseprompt_prefixes"


@final
@dataclass(eq=False)
class _Pass:
    """State of attention during one forward pass of a tower; layers are called in order."""

    # `prefixes` are their keys and values, or () to compute some; `rows` names the prefix of each
    # row; `visible` says which keys a position sees, its prefix's, then its own (b, 1, s, t + s);
    # `spans` are runs of rows with one prefix, where copies are expensive.

    prefixes: KeyValues
    rows: Int[Tensor, " b"]
    visible: Tensor
    spans: list[tuple[int, int]] = field(default_factory=list)
    key_values: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    layer: int = 0

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
        """Return the attention of one layer, shape (b, s, heads, d)."""
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        if self.prefixes:
            before = self.prefixes[self.layer]
            self.layer += 1
            if self.spans:
                return self._attend_in_place(query * scale, keys, values, *before)
            keys = torch.cat([before[0][self.rows], keys], dim=2)
            values = torch.cat([before[1][self.rows], values], dim=2)
        else:
            self.key_values.append((keys, values))
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=self.visible, scale=scale
        )
        return attended.transpose(1, 2).contiguous()

    def _attend_in_place(
        self,
        query: Float[Tensor, "b h s d"],
        keys: Float[Tensor, "b h s d"],
        values: Float[Tensor, "b h s d"],
        prefix_keys: Float[Tensor, "n h t d"],
        prefix_values: Float[Tensor, "n h t d"],
    ) -> Float[Tensor, "b s h d"]:
        """Attend without a copy of a prefix for each of its rows: a tenth of a tower's time."""
        # A row has few keys of its own: sums are quicker than many tiny matrix products, and the
        # library's softmax is slow where the last axis is short.
        width = prefix_keys.shape[2]
        parts = []
        sizes = [size for _, size in self.spans]
        by_span = (torch.split(t, sizes) for t in (query, keys, values, self.visible))
        for (prefix, size), q, k, v, visible in zip(self.spans, *by_span, strict=True):
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))  # (h, b, s, d)
            flat = q.reshape(len(q), -1, q.shape[-1])
            shared = (flat @ prefix_keys[prefix].mT).view(len(q), size, -1, width)
            own = (q[:, :, :, None] * k[:, :, None]).sum(dim=-1)
            scores = torch.cat([shared, own], dim=-1)  # (h, b, s, t + s)
            scores.masked_fill_(~visible[:, 0], -float("inf"))
            weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
            weights = weights / weights.sum(dim=-1, keepdim=True)
            flat = weights[..., :width].reshape(len(q), -1, width)
            attended = (flat @ prefix_values[prefix]).view(q.shape)
            attended += (weights[..., width:, None] * v[:, :, None]).sum(dim=-2)
            parts.append(attended.permute(1, 2, 0, 3))
        return torch.cat(parts).contiguous()


@final
@dataclass(eq=False)
class TextTower:
    """A causal text tower whose passes can start after a prefix, as far as `can_continue` says."""

    # `compute` makes features (b, o) of ids (b, s) and keywords `position_ids` and `prefix_pass`,
    # which reach its layers; `token_bytes` is what keys and values of one token take, 0 at first.

    compute: Callable[..., Float[Tensor, "b o"]]
    config: Any
    size: PassSize
    token_bytes: int = 0

    @torch.no_grad()
    def start(self, prefixes: PaddedIds) -> KeyValues:
        """Return keys and values of prefixes; those beyond a prefix's length mean nothing."""
        ids = prefixes.ids.to(self.size.device)
        length = ids.shape[1]
        causal = torch.ones(1, 1, length, length, dtype=torch.bool, device=self.size.device).tril()
        now = _Pass((), torch.arange(len(ids), device=self.size.device), causal)
        positions = torch.arange(length, device=self.size.device)[None]
        with _attention(self.config):
            self.compute(ids, position_ids=positions, prefix_pass=now)
        self.token_bytes = count_bytes(now.key_values) // ids.numel()
        return tuple(now.key_values)

    @torch.no_grad()
    def go_on(
        self,
        token_ids: Int[Tensor, "b s"],
        prefixes: KeyValues,
        rows: Int[Tensor, " b"],
        kept: Int[Tensor, " b"],
    ) -> Float[Tensor, "b o"]:
        """Return the features of texts from their tokens after the `kept` ones of a prefix.

        `rows` has the prefix of each text; it is quickest where texts of one prefix are together.
        """
        spans: list[tuple[int, int]] = []
        if (
            self.size.device.type == "cpu"
        ):  # An accelerator copies faster than it takes small steps.
            runs = torch.unique_consecutive(rows, return_counts=True)
            spans = list(zip(*(t.tolist() for t in runs), strict=True))
        ids, rows, kept = (t.to(self.size.device) for t in (token_ids, rows, kept))
        length, width = ids.shape[1], prefixes[0][0].shape[2]
        at = torch.arange(max(length, width), device=self.size.device)
        known = (at[:width] < kept[:, None])[:, None, None].expand(-1, 1, length, -1)
        own = (at[:length] <= at[:length, None]).expand(len(ids), 1, -1, -1)
        now = _Pass(prefixes, rows, torch.cat([known, own], dim=-1), spans)
        with _attention(self.config):
            positions = kept[:, None] + at[:length]
            return self.compute(ids, position_ids=positions, prefix_pass=now).float()

    def can_continue(self, ids: Int[Tensor, "1 s"], tolerance: float = 1e-4) -> bool:
        """Return whether going on from a prefix, of two lengths, gives a whole text's features."""
        zero = torch.zeros(1, dtype=torch.long)
        try:
            with full_precision(), torch.no_grad():
                begun = self.start(PaddedIds(ids[:, :-1], zero + ids.shape[1] - 1))
                want = self.compute(ids.to(self.size.device)).float()
                for cut in (1, ids.shape[1] // 2):
                    got = self.go_on(ids[:, cut:], begun, zero, zero + cut)
                    if not bool(((got - want).abs() <= tolerance).all()):
                        return False
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            # A tower that takes no such attention or positions, or needs all tokens at once.
            return False
        return True


@contextmanager
def _attention(config: Any) -> Iterator[None]:
    """Make a tower attend as `_Pass` does, inside this block."""
    from transformers import AttentionInterface

    def attend(_module: Any, q: Tensor, k: Tensor, v: Tensor, _mask: Any, **more: Any) -> Any:
        return more["prefix_pass"].attend(q, k, v, more.get("scaling")), None  # Nothing is padded.

    AttentionInterface.register(_ATTENTION, attend)
    usual = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = usual
