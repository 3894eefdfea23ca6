"""Where the loss is linearised: the words that stand in a slot while its gradient is taken.

Where matters as much as the map (docs/decisions.md): one neutral word gives a rank correlation of
0.3 with the true loss, the mean over 16 common words 0.6. A `Linearisation` names the points;
`linearise` takes loss and gradient there.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss
from fuseprompt.transfer.base import GRADIENT_COST, Meter, SlotIds, widen

#: Common words of different kinds; the first n are the linearisation points of `CommonWords(n)`.
COMMON_WORDS: Final = (
    "thing", "person", "animal", "building", "red", "water", "walking", "food", "small", "night",
    "beautiful", "car", "tree", "hand", "old", "music", "man", "dog", "house", "blue", "eating",
    "road", "flower", "bad", "happy", "city", "machine", "paper", "woman", "cat", "sky", "white",
    "running", "kitchen", "bird", "large", "street", "child", "green", "table", "sea", "broken",
    "two", "toy", "fire", "boat", "game", "ball", "king", "good", "snow", "school", "computer",
    "horse", "window", "stone", "sleeping", "drink", "black", "field", "mountain", "face", "book",
    "art",
)  # fmt: skip


@final
@dataclass(frozen=True)
class Linear:
    """First-order information about slots of q positions; d is q times the embedding width.

    Attributes:
        points: Embeddings that stood in the slot, its positions side by side, shape (k, d).
        losses: Exact loss there, shape (n, k).
        grads: Gradient of the loss there, shape (n, k, d).
    """

    points: Float[Tensor, "k d"]
    losses: Float[Tensor, "n k"]
    grads: Float[Tensor, "n k d"]

    @property
    def cost(self) -> float:
        """Forward equivalents that it took."""
        return GRADIENT_COST * self.losses.numel()

    def predict_mean(
        self, embeds: Float[Tensor, "n c d"] | Float[Tensor, "c d"], *, gain: float = 1.0
    ) -> Float[Tensor, "n c"]:
        """Return the mean of the k first-order predictions for candidate embeddings.

        Each is loss + grad . (candidate - point); the exact loss at the point puts all on one
        scale.

        Args:
            embeds: Candidates, shape (c, d), or (n, c, d) for candidates of their own in each slot.
            gain: Factor of the predicted change from the mean loss of the points.

        Returns:
            Predicted losses, shape (n, c).
        """
        grad = self.grads.mean(1)  # (n, d)
        offset = (self.grads * self.points).sum(-1).mean(-1)  # (n,)
        dots = grad @ embeds.T if embeds.dim() == 2 else torch.einsum("nd,ncd->nc", grad, embeds)
        return self.losses.mean(-1)[:, None] + gain * (dots - offset[:, None])

    def predict_pairs(
        self, slots: Int[Tensor, " c"], embeds: Float[Tensor, "c d"], *, gain: float = 1.0
    ) -> Float[Tensor, " c"]:
        """Return what `predict_mean` says of candidates that each have a slot of their own.

        Args:
            slots: Slot of each candidate, shape (c,).
            embeds: Candidates, shape (c, d).
            gain: As in `predict_mean`.

        Returns:
            Predicted losses, shape (c,).
        """
        offset = (self.grads * self.points).sum(-1).mean(-1)
        dots = (self.grads.mean(1)[slots] * embeds).sum(-1)
        return self.losses.mean(-1)[slots] + gain * (dots - offset[slots])


@runtime_checkable
class Linearisation(Protocol):
    """A choice of linearisation points."""

    @property
    def name(self) -> str:
        """Name in results."""
        ...

    def points(self, loss: EmbedLoss) -> Float[Tensor, "k d"]:
        """Return embeddings of the secondary to put into the slot, shape (k, d)."""
        ...


@final
@dataclass(frozen=True)
class VocabularyMean:
    """One point: the mean of the secondary's whole vocabulary."""

    name: str = "vocabulary-mean"

    def points(self, loss: EmbedLoss) -> Float[Tensor, "k d"]:
        """Return the mean vector, shape (1, d)."""
        return loss.vocabulary.float().mean(0, keepdim=True)


@final
@dataclass(frozen=True)
class CommonWords:
    """The first `num_words` of `COMMON_WORDS`, each the mean of its pieces.

    Attributes:
        num_words: How many points, 1 to 64.
    """

    num_words: int = 16

    def __post_init__(self) -> None:
        """Check the count."""
        if not 1 <= self.num_words <= len(COMMON_WORDS):
            raise ValueError(
                f"num_words must be between 1 and {len(COMMON_WORDS)}, was: {self.num_words}."
            )

    @property
    def name(self) -> str:
        """Name in results."""
        return f"common-{self.num_words}"

    def points(self, loss: EmbedLoss) -> Float[Tensor, "k d"]:
        """Return one vector per word, shape (num_words, d)."""
        rows = loss.tokenizer.encode_batch([" " + w for w in COMMON_WORDS[: self.num_words]])
        return torch.stack([loss.vocabulary[torch.tensor(ids)].float().mean(0) for ids in rows])


def linearise(
    loss: EmbedLoss,
    slots: SlotIds,
    problems: Int[Tensor, " n"],
    points: Float[Tensor, "k d"],
    *,
    width: int = 1,
) -> Linear:
    """Take loss and gradient with each point standing in each slot.

    Args:
        loss: The term.
        slots: Tokenised slots, n of them.
        problems: Problem of each slot, shape (n,).
        points: Embeddings to put into the slot, shape (k, d).
        width: Positions of the slot, q; a point stands at every one of them.

    Returns:
        Losses and gradients, all detached; rows of q d numbers.

    Cost: n * k forward and backward passes of the secondary.
    """
    n, k = len(slots.token_ids), points.shape[0]
    slots = widen(slots, width)
    rows = torch.arange(n).repeat_interleave(k)
    token_ids = slots.token_ids[rows]
    points = points.detach()[:, None].expand(k, width, -1)
    inserted = points.repeat(n, 1, 1).requires_grad_(True)  # (n k, q, d)
    context = loss.vocabulary[token_ids.ids].detach().float()
    at = slots.positions[rows][:, None] + torch.arange(width)
    with torch.enable_grad():
        embeds = context.index_put((torch.arange(n * k)[:, None], at), inserted)
        losses = loss.loss(token_ids, problems[rows], embeds=embeds)
        (grads,) = torch.autograd.grad(losses.sum(), inserted)
    return Linear(points.flatten(1), losses.detach().reshape(n, k), grads.reshape(n, k, -1))


@final
@dataclass(frozen=True)
class SlotGradients:
    """Linearises one term's loss at the points of a setting, and counts what that costs.

    Attributes:
        loss: The term.
        linearisation: Where the loss is linearised.
        meter: Counts forward equivalents.
    """

    loss: EmbedLoss
    linearisation: Linearisation
    meter: Meter = field(default_factory=Meter)

    @cached_property
    def points(self) -> Float[Tensor, "k d"]:
        """Embeddings that stand in the slots, shape (k, d)."""
        return self.linearisation.points(self.loss)

    def take(self, ids: SlotIds, problems: Int[Tensor, " n"], *, width: int = 1) -> Linear:
        """Return what `linearise` returns, its cost counted.

        Args:
            ids: Tokenised slots, n of them.
            problems: Problem of each slot, shape (n,).
            width: Positions of the slot.
        """
        linear = linearise(self.loss, ids, problems, self.points, width=width)
        self.meter.add(linear.cost)
        return linear
