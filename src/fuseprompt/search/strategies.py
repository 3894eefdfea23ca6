"""Which candidates live on: the best few of each problem.

Strategies see losses and problems only. Ties within 1e-5 are broken by token id, so a result does
not hang on the last bit of a matrix product. Read next: `fuseprompt.search.constraints`.
"""

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: Losses closer than this are equal.
TIE = 1e-5


@runtime_checkable
class Strategy(Protocol):
    """Selects the candidates of the next step."""

    def select(
        self, losses: Float[Tensor, " c"], problems: Int[Tensor, " c"], tokens: Int[Tensor, " c"]
    ) -> Int[Tensor, " k"]:
        """Return the indices of candidates that live on, by problem and then by loss."""
        ...


@final
@dataclass(frozen=True)
class BeamSearch:
    """The `beam_width` best candidates of each problem.

    Attributes:
        beam_width: Beams per problem. #: paper, section 4.2: 5
    """

    beam_width: int = 5

    def __post_init__(self) -> None:
        """Check the width."""
        if self.beam_width < 1:
            raise ValueError(f"beam_width must be at least 1, was: {self.beam_width}.")

    def select(
        self, losses: Float[Tensor, " c"], problems: Int[Tensor, " c"], tokens: Int[Tensor, " c"]
    ) -> Int[Tensor, " k"]:
        """Return the best candidates of each problem."""
        return select_best(losses, problems, tokens, self.beam_width)


def select_best(
    losses: Float[Tensor, " c"],
    problems: Int[Tensor, " c"],
    tokens: Int[Tensor, " c"],
    num_best: int,
) -> Int[Tensor, " k"]:
    """Return the `num_best` best candidates of each problem; ties within `TIE` by token id."""
    order = torch.argsort(tokens, stable=True)
    for key in (torch.round(losses.double() / TIE), problems):
        order = order[torch.argsort(key[order], stable=True)]
    # How many better ones of its problem stand before each.
    _, counts = torch.unique_consecutive(problems[order], return_counts=True)
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return order[torch.arange(len(order)) - starts < num_best]
