"""Forward passes compiled by `torch.compile` for a few fixed numbers of rows.

A search has another number of rows in every pass and another length at every step; compiled anew
for each of them it would never end. So the rows of a pass are cut into a few sizes, the last part
filled up with copies of its last row, and lengths are left open to the compiler: one compilation
serves a size at any length. Models offer it as `compiled()`, which shares their weights; gradients
and reported likelihoods are always computed uncompiled. Read next: `fuseprompt.models.pretrained`.
"""

from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, Final, final

import torch
from torch import Tensor

from fuseprompt.errors import ModelError

#: Rows of the smallest pass; every further size has `GROWTH` times as many.
SMALLEST: Final = 8
GROWTH: Final = 4

#: What a pass costs beside its rows, in rows: a guess between processors and models.
_PASS_ROWS: Final = 16

#: Largest difference at which a compiled pass counts as the plain one, relative to the largest
#: number of a row where that is above 1.
TOLERANCE: Final = 1e-4

#: What `torch.compile` takes: the name of a compiler, or a function that is one.
Backend = str | Callable[..., Any]

Compute = Callable[..., tuple[Tensor, ...]]


@final
class CompiledPass:
    """A function of rows that is compiled once for each size.

    The first result of every size in fp32 is compared with what the function gives uncompiled.

    Args:
        compute: From tensors with one row of the pass each, then tensors that all rows share, to
            tensors with one row each. What else it reads must not change.
        name: What error messages call the model.
        backend: The compiler.
    """

    def __init__(self, compute: Compute, *, name: str, backend: Backend = "inductor") -> None:
        self._compute = compute
        self._name = name
        self._backend = backend
        self._by_size: dict[int, Compute] = {}
        self._compared: set[int] = set()

    @torch.no_grad()
    def __call__(self, rows: Sequence[Tensor], shared: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Return what `compute(*rows, *shared)` returns.

        Args:
            rows: Tensors with one row of the pass each, at least one row.
            shared: Tensors that all rows share.

        Raises:
            ModelError: If the compiler fails, or what it made gives other numbers.
        """
        count = len(rows[0])
        parts = []
        for start, size in cut(count):
            part = rows
            if (start, size) != (0, count):
                at = torch.arange(start, start + size, device=rows[0].device).clamp_max(count - 1)
                part = [tensor[at] for tensor in rows]
            parts.append(self._run(size, part, shared))
        if len(parts) == 1:
            return tuple(tensor[:count] for tensor in parts[0])
        return tuple(torch.cat(same)[:count] for same in zip(*parts, strict=True))

    def _run(
        self, size: int, rows: Sequence[Tensor], shared: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        for tensor in rows:
            torch._dynamo.mark_static(tensor, 0)
        if size not in self._by_size:
            self._by_size[size] = self._compile(size)
        try:
            got = self._by_size[size](*rows, *shared)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).strip().split("\n\n")[0].split())
            raise ModelError(
                f"{self._name}: its forward passes cannot be compiled ({reason}). Install a C++ "
                "compiler such as g++ if there is none, or do without compiled (--compile)."
            ) from error
        # In half precision compiled code rounds in other places.
        if size not in self._compared and not torch.is_autocast_enabled(rows[0].device.type):
            self._compare(got, self._compute(*rows, *shared))
            self._compared.add(size)
        return got

    def _compile(self, size: int) -> Compute:
        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            return self._compute(*tensors)

        # The compiler counts what it made by code object, gives up after a few, and takes the rows
        # for open when it meets a second number of them: each size gets an object of its own.
        code = run.__code__.replace(co_name=f"run_{size}_rows")
        own = FunctionType(code, run.__globals__, code.co_name, None, run.__closure__)
        compiled: Compute = torch.compile(own, backend=self._backend, dynamic=True)
        return compiled

    def _compare(self, got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
        for ours, plain in zip(got, want, strict=True):
            # A model may give a token no chance at all: infinities have no difference and no size.
            apart = torch.where(ours == plain, 0.0, (ours - plain).abs())
            sizes = plain.abs().masked_fill(plain.isinf(), 0.0)
            error = (apart / sizes.amax(dim=-1, keepdim=True).clamp_min(1.0)).max()
            if not error <= TOLERANCE:
                raise ModelError(
                    f"{self._name}: compiled, its numbers differ by up to {float(error):.1e} from "
                    f"uncompiled ones, more than {TOLERANCE:.0e}. Do without compiled (--compile)."
                )


def cut(count: int) -> Iterator[tuple[int, int]]:
    """Yield where each pass begins and how many rows it has, so that all sizes are fixed ones.

    Args:
        count: Rows; the last pass may reach beyond them.
    """
    start = 0
    for size in _choose_sizes(count) if count else ():
        yield start, size
        start += size


def _choose_sizes(count: int) -> list[int]:
    """Return sizes for so many rows: one that holds all, or smaller ones where that costs less."""
    size = SMALLEST
    while size < count:
        size *= GROWTH
    if size == SMALLEST:
        return [size]
    below = size // GROWTH
    num_full, rest = divmod(count, below)
    smaller = [below] * num_full + (_choose_sizes(rest) if rest else [])
    return min([size], smaller, key=lambda sizes: sum(sizes) + _PASS_ROWS * len(sizes))


def compile_rows(
    compute: Callable[[Tensor], Tensor], *, name: str, backend: Backend
) -> Callable[[Tensor], Tensor]:
    """Return a function from ids, shape (b, s), to outputs, shape (b, o), that is compiled.

    Args:
        compute: The same uncompiled.
        name: What error messages call the model.
        backend: The compiler.
    """
    passes = CompiledPass(lambda ids: (compute(ids),), name=name, backend=backend)
    return lambda ids: passes((ids,))[0]
