"""Batches for encoders: rows of equal length together, never padded, at most so many at once.

`run_by_length` is the one loop through which every secondary's forward pass goes. It knows no
family of models. Read next: `fuseprompt.models.sentence`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.passes import PassSize
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
    size: PassSize | None = None,
    padded_to: int = 1,
) -> Float[Tensor, "b o"]:
    """Call `forward` on batches of rows of equal length and put the results back in order.

    Equal lengths need no mask and no padding, so a row's numbers cannot depend on its neighbours.

    Args:
        forward: Ids (b, s) and embeddings or `None` to outputs (b, o).
        token_ids: Framed ids.
        embeds: Embeddings to use instead of the ids' own, shape (b, s, d).
        device: Where the model lives.
        size: How large a pass may be, remembered by the caller; by default the estimate.
        padded_to: Tokens that `forward` fills shorter rows up to, so that passes stay small.

    Returns:
        Outputs, shape (b, o), in fp32 on `device`.
    """
    size = size or PassSize(TOKENS_PER_PASS, device)
    parts: list[Tensor] = []
    order: list[Tensor] = []
    for length in torch.unique(token_ids.lengths).tolist():

        def compute(chunk: Tensor, length: int = length) -> Tensor:
            ids = token_ids.ids[chunk, :length].to(device)
            part = None if embeds is None else embeds[chunk.to(embeds.device), :length]
            return forward(ids, part).float()

        rows = torch.nonzero(token_ids.lengths == length).flatten()
        for chunk, outputs in size.run(rows, max(length, padded_to), compute):
            parts.append(outputs)
            order.append(chunk)
    result = torch.cat(parts)
    back = torch.argsort(torch.cat(order))
    return result[back.to(result.device)]
