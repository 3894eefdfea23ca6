"""Checkpoints: the state of one search in a safetensors file, so that a killed one goes on.

A state is a dataclass of tensors, texts, numbers and further such dataclasses; its types say how it
is read back. Fields marked `REBUILT` (models, caches) are taken from a state that is just begun.
"""

import dataclasses
import hashlib
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Union, final, get_args, get_origin, get_type_hints

from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch import Tensor

from fuseprompt.cache import write_atomically
from fuseprompt.errors import SearchError
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.search.method import Found

#: Metadata of a field of a state that is made again, not saved.
REBUILT: Final = {"rebuilt": True}

#: Key of a tensor's name in JSON.
_TENSOR: Final = "tensor"


@final
@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: results of methods that are done, and the state of the next."""

    before: tuple[Found, ...] | None
    number: int  # of the method
    state: Any


@final
@dataclass(frozen=True)
class Checkpoint:
    """The file of a search that `settings`, its seed and its problems make what it is."""

    path: Path
    bound: BoundObjective
    settings: Mapping[str, Any]

    @cached_property
    def _digest(self) -> str:
        facts = [(p.id, p.prefix, p.start, p.template) for p in self.bound.problems]
        models = [self.bound.objective.primary, *(term.model for term in self.bound.terms)]
        prompts = [getattr(model, "begin_ids", ()) for model in models]
        whole = json.dumps([self.settings, facts, self.bound.seeds, prompts], sort_keys=True)
        digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass"))
        for term in self.bound.terms:
            digest.update(term.targets.numpy().tobytes())
        return digest.hexdigest()

    def write(self, saved: Saved, begun: Any) -> Any:
        """Save a search, and return its state as it will be read into one just begun."""
        tensors: dict[str, Tensor] = {}
        content = json.dumps(
            [_encode(saved.before, tensors), saved.number, _encode(saved.state, tensors)]
        )
        kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        metadata = {"search": self._digest, "content": content, "sha256": _sum(content, kept)}
        write_atomically(self.path, lambda part: save_file(kept, part, metadata))
        return self._restore(json.loads(content), kept, begun).state

    def read(self, begin: Callable[[int, tuple[Found, ...] | None], Any]) -> Saved | None:
        """Return a saved search, or None; `begin` gives the state before a method's first step."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise SearchError(
                f"{self.path} is no checkpoint ({error}). Remove it, or name another file."
            ) from error
        if metadata.get("search") != self._digest:
            raise SearchError(
                f"{self.path} is the checkpoint of another search: settings, seed, problems, "
                "models or versions differ. Remove it, or name another file."
            )
        saved = metadata.get("content", "")
        if metadata.get("sha256") != _sum(saved, kept):
            raise SearchError(
                f"{self.path} was changed since it was written. Remove it, or name another file."
            )
        content = json.loads(saved)
        before = _decode(tuple[Found, ...] | None, content[0], kept)
        return self._restore(content, kept, begin(content[1], before))

    def _restore(self, content: Any, tensors: Mapping[str, Tensor], begun: Any) -> Saved:
        before = _decode(tuple[Found, ...] | None, content[0], tensors)
        return Saved(before, content[1], _decode(type(begun), content[2], tensors, begun))


def _sum(content: str, tensors: Mapping[str, Tensor]) -> str:
    return hashlib.sha256(content.encode() + save(dict(tensors))).hexdigest()


def _encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value
        return {_TENSOR: name}
    if dataclasses.is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name), tensors) for f in _saved(type(value))}
    if isinstance(value, Mapping):
        return {key: _encode(item, tensors) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_encode(item, tensors) for item in value]
    return value


def _saved(kind: Any) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(kind) if not f.metadata.get("rebuilt")]


def _decode(kind: Any, value: Any, tensors: Mapping[str, Tensor], begun: Any = None) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if isinstance(value, dict) and value.keys() == {_TENSOR}:
        return tensors[value[_TENSOR]]
    if origin in (Union, types.UnionType):
        return _decode(next(a for a in args if a is not type(None)), value, tensors)
    if origin is tuple:
        each = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_decode(k, v, tensors) for k, v in zip(each, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {key: _decode(args[1], item, tensors) for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        fields = {
            f.name: _decode(hints[f.name], value[f.name], tensors, getattr(begun, f.name, None))
            for f in _saved(kind)
        }
        make: Any = kind
        return make(**fields) if begun is None else dataclasses.replace(begun, **fields)
    return value
