"""Batches for encoders: rows of equal length together, never padded, at most so many at once.

`run_by_length` is the one loop through which every secondary's forward pass goes. It knows no
family of models. Read next: `fuseprompt.models.sentence`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.text.retokenize import PaddedIds

#: Tokens in one forward pass on a CPU; larger passes fall out of its caches and are slower per
#: token.
TOKENS_PER_PASS = 4096

Forward = Callable[[Int[Tensor, "b s"], Float[Tensor, "b s d"] | None], Float[Tensor, "b o"]]


def run_by_length(
    forward: Forward,
    token_ids: PaddedIds,
    *,
    embeds: Float[Tensor, "b s d"] | None = None,
    device: torch.device,
    padded_to: int = 1,
) -> Float[Tensor, "b o"]:
    """Call `forward` on batches of rows of equal length and put the results back in order.

    Equal lengths need no mask and no padding, so a row's numbers cannot depend on its neighbours.

    Args:
        forward: Ids (b, s) and embeddings or `None` to outputs (b, o).
        token_ids: Framed ids.
        embeds: Embeddings to use instead of the ids' own, shape (b, s, d).
        device: Where the model lives.
        padded_to: Tokens that `forward` fills shorter rows up to, so that passes stay small.

    Returns:
        Outputs, shape (b, o), in fp32 on `device`.
    """
    parts: list[Tensor] = []
    order: list[Tensor] = []
    for length in torch.unique(token_ids.lengths).tolist():
        rows = torch.nonzero(token_ids.lengths == length).flatten()
        for chunk in torch.split(rows, max(1, TOKENS_PER_PASS // max(length, padded_to))):
            ids = token_ids.ids[chunk, :length].to(device)
            part = None if embeds is None else embeds[chunk.to(embeds.device), :length]
            parts.append(forward(ids, part).float())
            order.append(chunk)
    result = torch.cat(parts)
    back = torch.argsort(torch.cat(order))
    return result[back.to(result.device)]
