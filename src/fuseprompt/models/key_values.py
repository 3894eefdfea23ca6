"""Keys and values of causal models, and how much two rows of ids share at their beginning.

In a causal model the keys and values of a token depend on nothing behind it, so rows that begin
alike have those of the beginning in common. Nothing is kept here (`fuseprompt.models.prefix_cache`
and `fuseprompt.models.tower_cache` do). Read next: `fuseprompt.models.prefix_cache`.
"""

from collections.abc import Iterable

from jaxtyping import Int
from torch import Tensor

#: Keys and values of every layer, each of shape (b, heads, s, d): what a causal model made of rows
#: of tokens, and all that later tokens need of them. Never changed, only selected from.
KeyValues = tuple[tuple[Tensor, Tensor], ...]


def count_bytes(key_values: Iterable[tuple[Tensor, Tensor]]) -> int:
    """Return how much memory keys and values take up."""
    return sum(t.numel() * t.element_size() for pair in key_values for t in pair)


def count_shared(left: Int[Tensor, "*#b s"], right: Int[Tensor, "*#b t"]) -> Int[Tensor, "*b"]:
    """Return how many ids two rows share at their beginning.

    Args:
        left: Rows of ids; leading axes broadcast.
        right: Rows of ids.

    Returns:
        Counts, at most the shorter width; ids of padding count where they are equal.
    """
    width = min(left.shape[-1], right.shape[-1])
    return (left[..., :width] == right[..., :width]).cumprod(dim=-1).sum(dim=-1)
