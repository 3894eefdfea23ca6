"""A Hugging Face model with its tokenizer: loaded, checked, frozen, and run on batches of ids.

What all families share is here once; `causal_lm`, `encoders` and `image_text` say what a family
makes of its numbers. Here is no loss and no choice between families (`fuseprompt.models.hub`).
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fuseprompt.errors import ModelError, TokenizerError, reading
from fuseprompt.models.base import replaced_embeddings, vocabulary_of
from fuseprompt.models.batching import (
    TOKENS_PER_PASS,
    PassSize,
    full_precision,
    has_room,
    run_by_length,
)
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer

#: Tokens that a model takes where neither its configuration nor its tokenizer names a limit.
UNLIMITED: Final = 100_000

#: The text on which models are tried out.
SAMPLE: Final = "An image of a cat."

M = TypeVar("M", bound="PretrainedModel")


class PretrainedModel(ABC):
    """A frozen model that makes one vector of each text; a family says which (`_compute`)."""

    # `text_side` is the part of `module` that embeds token ids; `notes` say what changes a search.

    #: The class of transformers that loads the family.
    auto_class: ClassVar[str] = "AutoModel"

    #: The files that the family reads besides those of the model and the tokenizer.
    more_files: ClassVar[str] = ""

    def __init__(
        self, module: Any, tokenizer: Tokenizer, *, name: str = "", text_side: Any = None
    ) -> None:
        self.module = module.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.source: str | Path | None = None
        self._in_fp32: Any = None
        self.text_side = module if text_side is None else text_side
        check_tokenizer(tokenizer)
        check_embeddings(self.text_side, tokenizer, name=name)
        limits = (tokenizer.max_length, count_positions(self.text_side))
        named = [limit for limit in limits if limit is not None]
        self.max_length: int = min(named, default=UNLIMITED)
        self.notes: tuple[str, ...] = () if named else ("It names no longest text.",)
        self.pass_size = PassSize(TOKENS_PER_PASS, self.device)
        with torch.no_grad(), full_precision():
            for output in self._try_out():
                check_output(output, name=name)

    @classmethod
    def load(
        cls: type[M],
        path: str | Path,
        *,
        local_only: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        name: str = "",
    ) -> M:
        """Load a folder (or Hub id, when `local_only` is off) with all weights it uses."""
        import transformers

        auto = getattr(transformers, cls.auto_class)
        # Weights of another size are left out like those that are missing, and named as they are.
        name = name or str(path)
        with reading(path, "config.json, generation_config.json and the weights", name=name):
            module, found = auto.from_pretrained(
                str(path),
                local_files_only=local_only,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        tokenizer = Tokenizer.from_pretrained(path, local_only=local_only)
        with reading(path, cls.more_files, name=name):
            more = cls._read_more(path, tokenizer, local_only=local_only, name=name)
        model = cls(module.to(device), tokenizer, name=name, **more)
        model.source = path
        model._check_loaded(found)
        return model

    @classmethod
    def _read_more(
        cls, path: str | Path, tokenizer: Tokenizer, *, local_only: bool, name: str
    ) -> dict[str, Any]:
        """Return what else the family is made of, by the names of its arguments."""
        del path, tokenizer, local_only, name
        return {}

    @cached_property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The embedding layer applied to every id, shape (v, d)."""
        return vocabulary_of(self.text_side)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.module.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and passes; losses are computed in fp32 from what these give."""
        dtype: torch.dtype = self.module.dtype
        return dtype

    @property
    def tolerance(self) -> float:
        """Largest difference at which two ways to compute an output count as equal."""
        return 1e-4 if self.dtype == torch.float32 else 0.05

    def in_fp32(self: M) -> M:
        """Return the model in fp32, loaded once, or itself where it cannot be or does not fit."""
        if self._in_fp32 is None and self.dtype != torch.float32 and self.source is not None:
            num_bytes = sum(4 * weight.numel() for weight in self.module.parameters())
            if not has_room(num_bytes, self.device):
                return self
            self._in_fp32 = type(self).load(self.source, device=self.device, name=self.name)
        return self if self._in_fp32 is None else self._in_fp32

    def outputs(
        self, token_ids: PaddedIds, *, embeds: Float[Tensor, "b s d"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Return one fp32 vector for each text, special tokens included, whatever its neighbours.

        Where `embeds` stand in for the ids' embeddings, the result is differentiable in them and in
        nothing else.
        """
        return self._run(self._compute, token_ids, embeds=embeds, masks=self.can_pad)

    @abstractmethod
    def _compute(self, ids: Int[Tensor, "b s"], **masked: Any) -> Float[Tensor, "b o"]:
        """Return one vector for each row of ids, which are of equal length or masked."""

    @cached_property
    def can_pad(self) -> bool:
        """Whether a text's vector is the same where masked padding follows."""
        row = self._sample()[0].tolist()
        rows = PaddedIds.from_lists([[*row, *row], row])
        if rows.ids.shape[1] > self.max_length:
            return False
        ids = rows.ids.to(self.device)
        try:
            with torch.no_grad(), full_precision():
                got = self._compute(ids, attention_mask=_mask(rows).to(self.device))
                want = [self._compute(ids[:1]), self._compute(ids[1:, : len(row)])]
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return False
        return self._agree(got, torch.cat(want))

    def _agree(self, got: Tensor, want: Tensor) -> bool:
        """Return whether two ways to compute an output give the same to the model's tolerance."""
        return bool(((got - want).abs() <= self.tolerance * want.abs().clamp_min(1.0)).all())

    def _try_out(self) -> Sequence[Tensor]:
        """Return an output of every kind that the model has."""
        return [self._compute(self._sample().to(self.device))]

    def _check_loaded(self, found: Mapping[str, Iterable[Any]]) -> None:
        """Refuse a model whose outputs use weights that were not loaded, or that has no numbers.

        `found` is what transformers says of the files. What no output uses (a pooler, CLIP's logit
        scale) may be missing.

        Raises:
            ModelError: If there are such weights.
        """
        # An attention may take scores that are no numbers for masked ones, and so hide them. What
        # the files lack may be left as the memory was; whether it is used is asked below.
        lacking = {*found["missing_keys"], *(key[0] for key in found["mismatched_keys"])}
        every = self.module.named_parameters()
        weights = {name: weight.detach() for name, weight in every if name not in lacking}
        sums = {name: w.abs().sum(dtype=torch.float32) for name, w in weights.items()}
        infinite = [name for name, total in sums.items() if not total.isfinite()]
        whole = find_whole_numbers(Path(self.source or ""), weights)
        for what, bad in (("NaN or infinity", infinite), ("whole numbers", whole)):
            if bad:
                raise ModelError(
                    f"{self.name}: {len(bad)} of its weights hold {what}, such as {bad[0]}. "
                    "They are damaged or quantised: copy or convert them again."
                )
        sizes = {name: (tuple(got), tuple(want)) for name, got, want in found["mismatched_keys"]}
        state = {
            **dict(self.module.named_parameters(remove_duplicate=False)),
            **dict(self.module.named_buffers(remove_duplicate=False)),
        }
        random = {
            name: state[name]
            for name in sorted(lacking)
            if name in state and state[name].is_floating_point()
        }
        used = find_used(self._try_out, random)
        if not used:
            return self._check_all_taken(found["unexpected_keys"])
        named = [
            "{} of shape {} in place of {}".format(name, *sizes[name]) if name in sizes else name
            for name in used
        ]
        more = f" and {len(used) - 4} more" if len(used) > 4 else ""
        others = sorted(found["unexpected_keys"])
        strange = (
            f" They hold {len(others)} of other names, such as {others[0]!r}." if others else ""
        )
        raise ModelError(
            f"{self.name}: its files lack {len(used)} of the weights that its outputs are computed "
            f"from, which would be random: {', '.join(named[:4])}{more}.{strange} Copy all of its "
            "files again, or save the model with save_pretrained."
        )

    def _check_all_taken(self, unexpected: Iterable[str]) -> None:
        """Refuse files that have more for a layer that is used, or more layers, than the model."""
        modules = dict(self.module.named_modules())
        for name in sorted(unexpected):
            parts = name.removeprefix(f"{self.module.base_model_prefix}.").split(".")
            for whole in (parts, [self.module.base_model_prefix, *parts]):
                known = [i for i in range(1, len(whole)) if ".".join(whole[:i]) in modules]
                layer = modules[".".join(whole[: known[-1]])] if known else self.module
                is_leaf = known and next(layer.children(), None) is None
                if is_leaf or isinstance(layer, nn.ModuleList):
                    raise ModelError(
                        f"{self.name}: its files have a weight {name!r} that a model of its "
                        "config.json has no place for, so outputs would be wrong (is it quantised, "
                        "has it more layers, or a bias?). Give the config.json that belongs to it."
                    )

    def _run(
        self,
        compute: Callable[..., Float[Tensor, "b o"]],
        token_ids: PaddedIds,
        *,
        embeds: Float[Tensor, "b s d"] | None = None,
        padded_to: int = 1,
        masks: bool = False,
    ) -> Float[Tensor, "b o"]:
        def forward(rows: PaddedIds, part: Tensor | None) -> Tensor:
            is_padded = bool((rows.lengths < rows.ids.shape[1]).any())
            masked = {"attention_mask": _mask(rows).to(self.device)} if is_padded else {}
            if part is None:
                with torch.no_grad():
                    return compute(rows.ids, **masked)
            with replaced_embeddings(self.text_side, part):
                return compute(rows.ids, **masked)

        return run_by_length(
            forward,
            token_ids,
            size=self.pass_size,
            embeds=embeds,
            padded_to=padded_to,
            masks=masks,
        )

    def _sample(self) -> Int[Tensor, "1 s"]:
        """Return the ids of a text of several tokens, special tokens included."""
        return torch.tensor([self.tokenizer.add_special_tokens(self.tokenizer.encode(SAMPLE))])


def _mask(rows: PaddedIds) -> Int[Tensor, "b s"]:
    """Return 1 for the tokens of rows and 0 for padding."""
    return (torch.arange(rows.ids.shape[1]) < rows.lengths[:, None]).long()


def find_used(try_out: Callable[[], Sequence[Tensor]], weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of those weights that the results of `try_out` are computed from."""
    if not weights:
        return []
    for weight in weights.values():
        weight.requires_grad_(True)
    with torch.enable_grad():
        todo: list[Any] = [output.grad_fn for output in try_out()]
    for weight in weights.values():
        weight.requires_grad_(False)
    # The leaves of the graph that a backward pass would walk; no gradient is computed.
    nodes: set[Any] = {None}
    while todo:
        node = todo.pop()
        if node not in nodes:
            nodes.add(node)
            todo.extend(parent for parent, _ in node.next_functions)
    leaves = {id(getattr(node, "variable", None)) for node in nodes}
    return [name for name, weight in weights.items() if id(weight) in leaves]


def find_whole_numbers(folder: Path, weights: Iterable[str]) -> list[str]:
    """Return the weights that a folder's files have as whole numbers, which load as if sound."""
    names = {part for name in weights for part in (name, name.partition(".")[2])}
    found: list[str] = []
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            tensors = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        # Floats are F32, F16, BF16 and others; whole numbers I8 to U64 and BOOL.
        found += [n for n, facts in tensors.items() if n in names and "F" not in facts["dtype"]]
    return found


def count_positions(module: Any) -> int | None:
    """Return how many tokens a model has positions for, or `None` if nothing names a number.

    RoBERTa and its relatives count positions from the padding id, so the first rows of their table
    are never the position of a token; such a table has a padding row of its own.
    """
    positions: int | None = getattr(module.config, "max_position_embeddings", None)
    for name, layer in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(layer, nn.Embedding):
            unused = 0 if layer.padding_idx is None else layer.padding_idx + 1
            return layer.num_embeddings - unused
    return positions


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Raise a `TokenizerError` if a tokenizer puts a special token twice at one side of a text."""
    for side, ids in (("before", tokenizer.prefix_ids), ("after", tokenizer.suffix_ids)):
        if len(set(ids)) < len(ids):
            raise TokenizerError(
                f"{tokenizer.name}: it puts {tokenizer.decode(ids)!r} {side} a text, the same "
                "special token twice. Save it again with add_bos_token or the template, not both."
            )


def check_embeddings(module: Any, tokenizer: Tokenizer, *, name: str) -> None:
    """Raise a `ModelError` unless a model has a matrix with a finite row for every token."""
    try:
        weight = module.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):
        weight = None
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise ModelError(
            f"{name}: {type(module).__name__} has no layer that embeds token ids "
            "(get_input_embeddings), so no gradient can reach its tokens. Give a model that reads "
            "text as token ids."
        )
    num_tokens = max(tokenizer.ids_by_token.values()) + 1
    if num_tokens > weight.shape[0]:
        raise ModelError(
            f"{name}: the tokenizer has {num_tokens} tokens, but the model's matrix only "
            f"{weight.shape[0]} rows. Give the tokenizer that belongs to the model, or call "
            "resize_token_embeddings and train the new rows."
        )
    # One pass over a large matrix; which rows are bad is asked only if one may be.
    if bool(torch.isfinite(weight.detach().abs().sum())):
        return
    bad = torch.nonzero(~torch.isfinite(weight).all(dim=1)).flatten().tolist()
    if bad:
        raise ModelError(
            f"{name}: {len(bad)} rows of the embedding matrix hold NaN or infinity (first: id "
            f"{bad[0]}). Its weights are damaged: copy or convert them again."
        )


def check_output(output: Tensor, *, name: str) -> None:
    """Raise a `ModelError` unless a model's answer to a plain text or picture is finite."""
    if not bool(torch.isfinite(output).all()):
        raise ModelError(
            f"{name}: the answer to a plain text holds NaN or infinity, so the weights are damaged "
            "or overflow in fp32. Copy or convert them again."
        )
