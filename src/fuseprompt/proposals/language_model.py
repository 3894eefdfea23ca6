"""Controls: a search with no information from the secondaries, and one with noise in its place."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary, TextModel
from fuseprompt.proposals.base import Positions
from fuseprompt.text.retokenize import RetokenizationTable


@final
@dataclass(frozen=True)
class LanguageModelOnly:
    """The language model's own choice: the secondaries say nothing before they score."""

    name: ClassVar[str] = "none"

    def init(
        self, primary: HasVocabulary, secondary: TextModel, table: RetokenizationTable
    ) -> "LanguageModelOnly":
        """Return the proposal itself: nothing is made for two models."""
        return self

    def bind(self, loss: EmbedLoss) -> "_Silent":
        """Return a scorer that finds all tokens alike."""
        return _Silent(loss.vocabulary.device)


@final
@dataclass(frozen=True)
class _Silent:
    device: torch.device
    cost: float = 0.0

    def word_initial(self, positions: Positions, tokens: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        return torch.zeros(len(positions), len(tokens), device=self.device)

    def word_internal(
        self, positions: Positions, tokens: Int[Tensor, "n c"]
    ) -> Float[Tensor, "n c"]:
        return torch.zeros(tokens.shape, device=self.device)


@final
@dataclass(frozen=True)
class RandomNoise:
    """Noise of a realistic size in place of a prediction, seeded and scaled.

    No gradient and no map is in it; random maps (`fuse.gradient.RandomFallback`) are another thing.
    A token at a given position of a problem gets the same number, whatever else is in the batch;
    `scale` is the standard deviation.
    """

    name: ClassVar[str] = "random"
    seed: int = 0
    scale: float = 0.03

    def init(
        self, primary: HasVocabulary, secondary: TextModel, table: RetokenizationTable
    ) -> "_RandomState":
        """Keep the size of the primary's vocabulary."""
        return _RandomState(self, table.primary.vocab_size)


@final
@dataclass(frozen=True)
class _RandomState:
    proposal: RandomNoise
    vocab_size: int

    def bind(self, loss: EmbedLoss) -> "_RandomScorer":
        return _RandomScorer(self.proposal, self.vocab_size, tuple(loss.seeds), loss.name)


@final
@dataclass(frozen=True)
class _RandomScorer:
    proposal: RandomNoise
    vocab_size: int
    seeds: tuple[int, ...]
    name: str
    cost: float = 0.0

    def word_initial(self, positions: Positions, tokens: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        return self._noise(positions)[:, tokens]

    def word_internal(
        self, positions: Positions, tokens: Int[Tensor, "n c"]
    ) -> Float[Tensor, "n c"]:
        return self._noise(positions).gather(1, tokens)

    def _noise(self, positions: Positions) -> Float[Tensor, "n v"]:
        rows = []
        for left, right, problem in zip(
            positions.left, positions.right, positions.problems.tolist(), strict=True
        ):
            seeds = f"{self.proposal.seed}\0{self.seeds[problem]}"
            digest = hashlib.sha256(f"{seeds}\0{self.name}\0{left}\0{right}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            rows.append(torch.randn(self.vocab_size, generator=generator))
        return torch.stack(rows) * self.proposal.scale
