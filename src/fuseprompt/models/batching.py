"""Forward passes over many texts: like lengths together, as large as memory allows, in full fp32.

Every pass of every model goes through a `PassSize`, which starts from an estimate, tries again with
half of it when an allocation fails, and remembers what fitted. Results are the same whatever it is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import is_out_of_memory
from fuseprompt.text.retokenize import PaddedIds

#: Tokens in one forward pass on a CPU; larger passes fall out of its caches and are slower.
TOKENS_PER_PASS: Final = 4096

#: Weights of a model that is loaded take this much more memory for a while.
_LOADING_FACTOR: Final = 1.2

#: Tokens of padding that take no longer on a CPU than the weights take to come out of memory, once
#: for each pass. An accelerator waits while a masked pass asks whether anything is masked.
_MOST_PADDING: Final = 64

#: How much larger passes on an accelerator start: it is idle in what fills a CPU's caches.
_ACCELERATOR_FACTOR: Final = 16

Forward = Callable[[PaddedIds, Float[Tensor, "b s d"] | None], Float[Tensor, "b o"]]

T = TypeVar("T")


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute in fp32 without TF32, which keeps three digits and is usual for convolutions on GPUs.

    The settings are the process's own, so they are put back.
    """
    backends: Any = torch.backends
    settings = (backends.cuda.matmul, backends.cudnn.conv)
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        yield
    finally:
        for setting, precision in zip(settings, before, strict=True):
            setting.fp32_precision = precision


@final
class PassSize:
    """The number of tokens that a forward pass may hold: an estimate, then what has fitted last."""

    def __init__(self, tokens: int, device: torch.device) -> None:
        if tokens < 1:
            raise ValueError(f"tokens must be at least 1, was: {tokens}.")
        self.device = device
        self.tokens = tokens * (1 if device.type == "cpu" else _ACCELERATOR_FACTOR)

    def group(
        self, lengths: Int[Tensor, " n"], *, pads: bool
    ) -> Iterator[tuple[int, Int[Tensor, " g"]]]:
        """Yield lengths and the rows of each, with shorter ones if `pads` and padding is cheap.

        Padding is cheap if it takes less time than another pass over few rows.
        """
        most_padding = _MOST_PADDING if pads and self.device.type == "cpu" else 0
        values, counts = torch.unique(lengths, return_counts=True)
        groups: list[list[int]] = []
        for length, count in zip(values.flip(0).tolist(), counts.flip(0).tolist(), strict=True):
            if groups and (groups[-1][0] - length) * count <= most_padding:
                groups[-1].append(length)
            else:
                groups.append([length])
        for group in reversed(groups):
            rows = torch.nonzero((lengths >= group[-1]) & (lengths <= group[0])).flatten()
            yield group[0], rows

    def run(
        self, rows: Int[Tensor, " n"], row_tokens: int, compute: Callable[[Int[Tensor, " c"]], T]
    ) -> Iterator[tuple[Int[Tensor, " c"], T]]:
        """Work through rows, each of so many tokens, in passes that fit; yield rows and results."""
        # `compute` is called again with half as many rows when memory runs out, so it must not
        # change anything that outlasts it. If a single row does not fit, that is an error.
        start = 0
        while start < len(rows):
            chunk = rows[start : start + max(1, self.tokens // max(row_tokens, 1))]
            result: list[T] = []
            try:
                with full_precision():
                    result.append(compute(chunk))
            except RuntimeError as error:
                if len(chunk) == 1 or not is_out_of_memory(error):
                    raise
            # Outside the handler, whose traceback holds on to the failed pass's tensors.
            if not result:
                self.tokens = len(chunk) // 2 * max(row_tokens, 1)
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                continue
            start += len(chunk)
            yield chunk, result[0]


def has_room(num_bytes: int, device: torch.device) -> bool:
    """Return whether weights of so many bytes can be loaded, as far as the system says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] > num_bytes * _LOADING_FACTOR
    free = []
    with suppress(OSError, ValueError, IndexError):
        meminfo = Path("/proc/meminfo").read_text()
        free.append(1024 * int(meminfo.split("MemAvailable:")[1].split()[0]))
    with suppress(OSError, ValueError):  # A container's own limit; "max" is none.
        limit, used = (Path(f"/sys/fs/cgroup/memory.{n}").read_text() for n in ("max", "current"))
        free.append(int(limit) - int(used))
    return min(free, default=num_bytes * 2) > num_bytes * _LOADING_FACTOR


def run_by_length(
    forward: Forward,
    token_ids: PaddedIds,
    *,
    size: PassSize,
    embeds: Float[Tensor, "b s d"] | None = None,
    padded_to: int = 1,
    masks: bool = False,
) -> Float[Tensor, "b o"]:
    """Return fp32 outputs of `forward`, called on batches of rows, in row order.

    Batches hold rows of one length, which need no mask, so that a row's numbers cannot depend on
    its neighbours; or of a few lengths where `forward` looks at the lengths (`masks`). A row counts
    at least `padded_to` tokens, so that passes of expensive rows stay small.
    """
    lengths = token_ids.lengths
    parts, order = [], []
    for width, rows in size.group(lengths, pads=masks):

        def compute(chunk: Tensor, width: int = width) -> Tensor:
            ids = token_ids.ids[chunk, :width].to(size.device)
            part = None if embeds is None else embeds[chunk.to(embeds.device), :width]
            return forward(PaddedIds(ids, lengths[chunk]), part).float()

        for chunk, outputs in size.run(rows, max(width, padded_to), compute):
            parts.append(outputs)
            order.append(chunk)
    return put_back(parts, order)


def put_back(parts: list[Float[Tensor, "_ ..."]], order: list[Int[Tensor, " _"]]) -> Tensor:
    """Return the results of passes in the order of all rows; `order` has the rows of each pass."""
    back = torch.argsort(torch.cat(order))
    return torch.cat(parts)[back.to(parts[0].device)]


def spread(
    starts: Int[Tensor, " b"], stops: Int[Tensor, " b"]
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Return row and place of each token of rows between two places, row by row."""
    counts = stops - starts
    of = torch.arange(len(counts)).repeat_interleave(counts)
    return of, torch.arange(len(of)) + (starts - counts.cumsum(0) + counts)[of]
