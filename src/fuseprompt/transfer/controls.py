"""Controls: a search with no information from the secondaries, and one with noise in its place.

Read next: `fuseprompt.transfer.word_table`, the control that is hard to beat.
"""

import hashlib
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer.base import Slots, TokenScorer


@final
@dataclass(frozen=True)
class NoTransfer:
    """Nothing reaches the primary: candidates are the language model's own choice."""

    @property
    def name(self) -> str:
        """Name in results."""
        return "none"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term."""
        return _NoScorer(loss.vocabulary.device)


@final
@dataclass(frozen=True)
class _NoScorer:
    device: torch.device
    cost: float = 0.0

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        return torch.zeros(len(slots), len(words), device=self.device)

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        return torch.zeros(tokens.shape, device=self.device)


@final
@dataclass(frozen=True)
class RandomTransfer:
    """Noise of a realistic size instead of information.

    It is the paper's fallback for long words, seeded and scaled.

    Attributes:
        seed: Seed, with those of the problems: a token in a given slot of a problem always gets
            the same number, whatever stands beside it in the batch.
        scale: Standard deviation of the predicted losses.
    """

    seed: int = 0
    scale: float = 0.03

    @property
    def name(self) -> str:
        """Name in results."""
        return "random"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term."""
        return _RandomScorer(
            self.seed, tuple(loss.seeds), self.scale, loss.name, table.primary.vocab_size
        )


@final
@dataclass(frozen=True)
class _RandomScorer:
    seed: int
    seeds: tuple[int, ...]
    scale: float
    name: str
    vocab_size: int
    cost: float = 0.0

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        return self._noise(slots)[:, words]

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        return self._noise(slots).gather(1, tokens)

    def _noise(self, slots: Slots) -> Float[Tensor, "n v"]:
        rows = []
        for left, right, problem in zip(
            slots.left, slots.right, slots.problems.tolist(), strict=True
        ):
            seeds = f"{self.seed}\0{self.seeds[problem]}"
            digest = hashlib.sha256(f"{seeds}\0{self.name}\0{left}\0{right}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            rows.append(torch.randn(self.vocab_size, generator=generator))
        return torch.stack(rows) * self.scale
