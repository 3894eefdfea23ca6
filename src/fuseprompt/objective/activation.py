"""Activations: texts that drive a unit, a direction or an SAE latent of a layer of a model."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fuseprompt.errors import ModelError, ProblemError
from fuseprompt.models.base import TextModel
from fuseprompt.models.batching import full_precision
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.objective.terms import count_outputs
from fuseprompt.text.retokenize import PaddedIds, concatenate
from fuseprompt.text.tokenizer import Tokenizer

#: How the activations of a text's tokens become one.
POOLS: Final = ("max", "last", "mean")

#: Tokens of one pass that shares beginnings: each of them attends to all.
_SHARED_TOKENS: Final = 384


class _Reached(Exception):  # noqa: N818
    """The layer that was asked for has answered: what comes after it need not be computed."""


@final
class HiddenStates:
    """What a layer makes of a text: a `TextModel` whose outputs are pooled activations.

    The tokens of the text count, not the special ones around it. With `pool="max"` the largest
    activation of any token counts, for each output alone.

    Attributes:
        pools_max: Whether a text's activation is that of its best token alone.
        thresholds: What an output must exceed to be active in an SAE, shape (o,); else `None`.
        latents: Which latents of the SAE the outputs are; else `None`.
    """

    def __init__(
        self,
        model: TextModel,
        layer: int | str,
        *,
        pool: str = "max",
        directions: Float[Tensor, "o h"] | None = None,
        offsets: Float[Tensor, " o"] | None = None,
    ) -> None:
        """Hook a layer of a model; its weights are shared.

        Args:
            model: A sentence encoder, a classifier or a causal language model.
            layer: The number of a block, from 0 on (its output is the residual stream), or the name
                of any module in the model that gives a vector for each token.
            pool: "max", "last" or "mean" over the tokens of the text.
            directions: What the outputs are: the products with these vectors. By default they are
                the units of the layer.
            offsets: What is added to each product.

        Raises:
            ModelError: If there is no such layer, or it gives no vectors of the directions' width.
        """
        if not isinstance(model, SentenceEncoder | Classifier | CausalLM):
            raise ModelError(
                f"{model.name}: expected a sentence encoder, a classifier or a causal language "
                f"model, got {type(model).__name__}."
            )
        if pool not in POOLS:
            raise ModelError(f"pool must be one of {list(POOLS)}, was: {pool!r}.")
        self._model = model
        self._layer = _find_layer(model.module, layer, model.name)
        self._pool = pool
        self.pools_max: bool = pool == "max"
        self._directions: Tensor | None = None
        self._offsets: Tensor | float = 0.0
        self.thresholds: Float[Tensor, " o"] | None = None
        self.latents: tuple[int, ...] | None = None
        self.tokenizer: Tokenizer = model.tokenizer
        self.max_length: int = model.max_length
        self.name = f"{model.name} layer {layer} ({pool})"
        width = count_outputs(self)
        if directions is not None:
            if directions.dim() != 2 or directions.shape[1] != width:
                raise ModelError(
                    f"{self.name} has {width} units; expected directions of shape (n, {width}), "
                    f"got {tuple(directions.shape)}."
                )
            self._directions = directions.detach().float().to(model.device)
            if offsets is not None:
                self._offsets = offsets.detach().float().to(model.device)
            # Tables on disk go by the name of a model.
            content = directions.detach().float().cpu().contiguous().view(torch.uint8)
            self.name += f" {hashlib.sha256(content.numpy().tobytes()).hexdigest()[:8]}"

    @classmethod
    def of_sae(
        cls,
        model: TextModel,
        layer: int | str,
        file: str | Path,
        latents: Sequence[int],
        *,
        pool: str = "max",
    ) -> "HiddenStates":
        """Return the latents of a sparse autoencoder before their threshold, in this order.

        The safetensors file holds its encoder: `W` of shape (latents, units) or (units, latents),
        `b` and `threshold` of shape (latents,), which may be left out where they are zero.

        Raises:
            ModelError: If the file is no such encoder or has no such latent.
        """
        try:
            tensors = load_file(file)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read as safetensors: {error}.") from None
        if "W" not in tensors or tensors["W"].dim() != 2:
            raise ModelError(
                f"{file}: expected an SAE's encoder with a matrix W, got {sorted(tensors)}."
            )
        units = cls(model, layer, pool=pool)
        weight = tensors["W"] if tensors["W"].shape[1] == count_outputs(units) else tensors["W"].T
        zero = torch.zeros(len(weight))
        rows = torch.tensor([_check_number(i, len(weight), f"{file}: latent") for i in latents])
        states = cls(
            model, layer, pool=pool, directions=weight[rows], offsets=tensors.get("b", zero)[rows]
        )
        states.thresholds = tensors.get("threshold", zero)[rows]
        states.latents = tuple(latents)
        return states

    @property
    def dtype(self) -> torch.dtype:
        """That of the model."""
        return self._model.dtype

    def in_fp32(self) -> "HiddenStates":
        """Return the same of the model in fp32, or itself where that cannot be loaded."""
        full = self._model.in_fp32()
        if full is self._model:
            return self
        states, layers = copy(self), self._model.module.named_modules()
        states._model = full
        states._layer = next(full.module.get_submodule(n) for n, m in layers if m is self._layer)
        return states

    @property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The model's vocabulary."""
        return self._model.vocabulary

    def outputs(
        self, token_ids: PaddedIds, *, embeds: Float[Tensor, "b s d"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Return the pooled activations of each row of ids, differentiable in `embeds`."""
        own, before = len(self.tokenizer.prefix_ids), self._begun
        if len(before) > own:
            added = torch.tensor(before).expand(len(token_ids), -1)
            lengths = torch.full_like(token_ids.lengths, len(before))
            rest = PaddedIds(token_ids.ids[:, own:], token_ids.lengths - own)
            token_ids = concatenate(PaddedIds(added, lengths), rest)
            if embeds is not None:
                first = self.vocabulary[added.to(self.vocabulary.device)].to(embeds)
                embeds = torch.cat([first, embeds[:, own:]], dim=1)

        def compute(ids: Int[Tensor, "b s"]) -> Float[Tensor, "b o"]:
            hidden = self._listen(lambda: self._model._compute(ids), ids.shape)
            last = ids.shape[1] - len(self.tokenizer.suffix_ids)
            # An empty text has the tokens around it alone.
            own = hidden[:, len(before) : last] if last > len(before) else hidden
            return self.pool(self._projected(own))

        return self._model._run(compute, token_ids, embeds=embeds)

    @torch.no_grad()
    def trace(self, text: str) -> tuple[list[tuple[int, int]], Float[Tensor, "s o"]]:
        """Return where each token of a text begins and ends, and its activations."""
        ids, offsets = self.tokenizer.encode_with_offsets(text)
        begun = self._begun
        row = torch.tensor([[*begun, *ids, *self.tokenizer.suffix_ids]], device=self._model.device)
        with full_precision():
            hidden = self._listen(lambda: self._model._compute(row), row.shape)
        return offsets, self._projected(hidden[0, len(begun) : len(begun) + len(ids)]).cpu()

    @torch.no_grad()
    def outputs_of_many(self, token_ids: PaddedIds) -> Float[Tensor, "b o"]:
        """Return `outputs`, where a causal model reads the beginnings that texts share once."""
        if not (isinstance(self._model, CausalLM) and self._model.can_pack):
            return self.outputs(token_ids)
        own = len(self.tokenizer.prefix_ids)
        rows = [[*self._begun, *row[own:]] for row in token_ids.to_lists()]
        order = sorted(range(len(rows)), key=rows.__getitem__)
        results: dict[int, Tensor] = {}
        for part in _split(rows, order):
            tree = _Tree.of([rows[i] for i in part])
            with full_precision():
                hidden = self._listen(partial(self._read_tree, tree), (1, len(tree.ids)))
            for i, path in zip(part, tree.paths, strict=True):
                of_text = path[len(self._begun) :] or path
                results[i] = self.pool(self._projected(hidden[:, of_text]))[0]
        return torch.stack([results[i] for i in range(len(rows))])

    def _read_tree(self, tree: "_Tree") -> None:
        assert isinstance(self._model, CausalLM)
        ids, at = torch.tensor(tree.ids), torch.tensor(tree.places)
        self._model.read_row(ids, at, tree.visible)

    @property
    def _begun(self) -> tuple[int, ...]:
        """What the model reads before a text: of a language model an end of text, or a prompt."""
        begun = self._model.begin_ids if isinstance(self._model, CausalLM) else ()
        return max(begun, self.tokenizer.prefix_ids, key=len)

    def _projected(self, hidden: Float[Tensor, "... h"]) -> Float[Tensor, "... o"]:
        directions = self._directions
        return (hidden if directions is None else hidden @ directions.T) + self._offsets

    def pool(self, each: Float[Tensor, "b s o"]) -> Float[Tensor, "b o"]:
        """Return what the activations of each row's tokens are together."""
        if self._pool == "max":
            return each.amax(dim=1)
        return each[:, -1] if self._pool == "last" else each.mean(dim=1)

    def _listen(self, read: Callable[[], Any], shape: Sequence[int]) -> Float[Tensor, "b s h"]:
        """Return what the layer gives while the model reads tokens of a shape."""
        seen: list[Any] = []

        def keep(_layer: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            seen.append(output)
            raise _Reached

        handle = self._layer.register_forward_hook(keep)
        try:
            read()
        except _Reached:
            pass
        finally:
            handle.remove()
        hidden = seen[0] if seen else None
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        if not isinstance(hidden, Tensor) or hidden.shape[:2] != tuple(shape) or hidden.dim() != 3:
            got = tuple(hidden.shape) if isinstance(hidden, Tensor) else type(hidden).__name__
            raise ModelError(
                f"{self.name}: expected a vector for each token from the layer, got {got}. Choose "
                "another one."
            )
        return hidden.float()


@final
@dataclass(frozen=True)
class _Tree:
    """Rows of tokens as a tree, in which each beginning stands once."""

    ids: list[int]
    places: list[int]  # of each token in its row
    visible: Bool[Tensor, "n n"]
    paths: list[list[int]]  # of each row, through the tokens

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "_Tree":
        nodes: dict[tuple[int, int], int] = {}
        ids: list[int] = []
        places: list[int] = []
        parents: list[int] = []
        paths: list[list[int]] = []
        for row in rows:
            path = [-1]
            for place, token in enumerate(row):
                key = (path[-1], token)
                if key not in nodes:
                    nodes[key] = len(ids)
                    ids.append(token)
                    places.append(place)
                    parents.append(path[-1])
                path.append(nodes[key])
            paths.append(path[1:])
        visible = torch.eye(len(ids), dtype=torch.bool)
        for node, parent in enumerate(parents):
            if parent >= 0:
                visible[node] |= visible[parent]
        return cls(ids, places, visible, paths)


def _split(rows: Sequence[Sequence[int]], order: Sequence[int]) -> Iterator[list[int]]:
    """Yield runs of rows in order that have few tokens together, equal beginnings counted once."""
    part: list[int] = []
    size = 0
    for i in order:
        shared = 0
        if part:
            pairs = zip(rows[part[-1]], rows[i], strict=False)
            shared = next((n for n, (a, b) in enumerate(pairs) if a != b), len(rows[part[-1]]))
        if part and size + len(rows[i]) - shared > _SHARED_TOKENS:
            yield part
            part, size, shared = [], 0, 0
        part.append(i)
        size += len(rows[i]) - shared
    yield part


@final
@dataclass(frozen=True)
class Activation:
    """Minus the activation of one output of `HiddenStates`, in the layer's own scale, no range.

    The target is the number of the output: a unit of the layer, or a row of its directions; or a
    mapping such as {17: 0.5}, of numbers to the factors of a sum. Weights are per unit of
    activation. An SAE's latent counts before its threshold, below which it would have no slope:
    where minus the loss is at most the threshold, the latent itself is 0.
    """

    model: TextModel
    weight: float = 1.0
    name: str = "activation"
    target: str = "unit"

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the factor of each output: 1 for the one asked for, 0 for the others."""
        count = count_outputs(self.model)
        vector = torch.zeros(count)
        for number, factor in (target if isinstance(target, Mapping) else {target: 1.0}).items():
            if not isinstance(number, int) or not 0 <= number < count:
                raise ProblemError(
                    f"Term {self.name!r}: no unit {number!r}; {self.model.name} has {count}, "
                    f"numbered 0 to {count - 1}."
                )
            vector[number] = factor
        return vector

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return minus the activation."""
        return -(outputs * targets).sum(dim=-1)


def _find_layer(module: nn.Module, layer: int | str, name: str) -> nn.Module:
    """Return a module by its name, or a block by its number."""
    modules = dict(module.named_modules())
    if isinstance(layer, str):
        if layer not in modules:
            raise ModelError(
                f"{name}: no module {layer!r} among its {len(modules)}, which are named like "
                f"{list(modules)[-1]!r}. A number names one of its blocks."
            )
        named: nn.Module = modules[layer]
        return named
    lists = [m for m in modules.values() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise ModelError(f"{name}: it has no list of blocks. Give the name of a module as layer.")
    blocks = max(lists, key=len)
    block: nn.Module = blocks[_check_number(layer, len(blocks), f"{name}: layer")]
    return block


def _check_number(number: int, count: int, what: str) -> int:
    """Return a number if there is such a one."""
    if not 0 <= number < count:
        raise ModelError(f"{what} {number} is not there: there are {count}, 0 to {count - 1}.")
    return number
