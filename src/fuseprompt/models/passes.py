"""How large a forward pass may be: an estimate that halves when memory runs out.

Which texts a search compares has nothing to do with how many of them fit into one pass. Every loop
over batches goes through a `PassSize`, which starts from an estimate, tries again with half of it
when an allocation fails, and remembers what fitted. Results are the same whatever it is. Read next:
`fuseprompt.models.encoder`.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar, final

import torch
from jaxtyping import Int
from torch import Tensor

#: How much larger passes on an accelerator start: it is idle in what fills a CPU's caches.
_ACCELERATOR_FACTOR: Final = 16

#: What allocators say; only CUDA's has an exception class of its own.
_OUT_OF_MEMORY: Final = ("out of memory", "not enough memory", "can't allocate memory")

T = TypeVar("T")


@final
class PassSize:
    """The number of tokens that one forward pass may hold.

    Args:
        tokens: The estimate to begin with, for a CPU.
        device: Where the model is.

    Attributes:
        tokens: Tokens in a pass; what fitted last, once memory ran out.

    Raises:
        ValueError: If `tokens` is not positive.
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        if tokens < 1:
            raise ValueError(f"tokens must be at least 1, was: {tokens}.")
        self.tokens = tokens * (1 if device.type == "cpu" else _ACCELERATOR_FACTOR)

    def run(
        self, rows: Int[Tensor, " n"], row_tokens: int, compute: Callable[[Int[Tensor, " c"]], T]
    ) -> Iterator[tuple[Int[Tensor, " c"], T]]:
        """Work through rows in passes that fit.

        Args:
            rows: Indices, shape (n,).
            row_tokens: Tokens that one row counts.
            compute: From some of the rows to their result; called again with half as many when
                memory runs out, so it must not change anything that outlasts it.

        Yields:
            The rows of a pass and their result, in order.

        Raises:
            RuntimeError: The allocator's own error, if a single row does not fit.
        """
        start = 0
        while start < len(rows):
            chunk = rows[start : start + max(1, self.tokens // max(row_tokens, 1))]
            result: list[T] = []
            try:
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


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error is an allocator's that has no memory left, on any device."""
    message = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(m in message for m in _OUT_OF_MEMORY)
