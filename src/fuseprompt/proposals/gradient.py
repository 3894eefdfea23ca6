"""The gradient as a proposal: each token goes through retokenisation, and no map is fitted.

The loss is linearised at 16 common words: their mean correlates with the true loss by rank at 0.6,
one neutral word at 0.3 (docs/decisions.md).
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.proposals.base import Positions, StandIns, lengthened_words, put_stand_ins
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable

#: Forward equivalents of a forward and a backward pass of one text.
GRADIENT_COST: Final = 3.0

#: Factor of the predicted loss changes. A gradient averaged over words undershoots: the regression
#: slope of true on predicted changes was 2.0-3.2 in 21 contexts (docs/decisions.md). It does not
#: change the order of word-initial tokens, but their standing against the language model and
#: against word-internal ones.
GAIN: Final = 2.6

#: Common words of different kinds; the first `num_words` are linearisation points.
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
    """Exact loss and gradient at positions, for k embeddings that stood there."""

    points: Float[Tensor, "k d"]
    losses: Float[Tensor, "n k"]
    grads: Float[Tensor, "n k d"]

    def predict_mean(
        self, embeds: Float[Tensor, "n c d"] | Float[Tensor, "c d"], *, gain: float = 1.0
    ) -> Float[Tensor, "n c"]:
        """Return the mean of the first-order predictions loss + gain * grad . (embed - point)."""
        # The exact loss at the points puts all positions on one scale.
        grad = self.grads.mean(1)  # (n, d)
        dots = grad @ embeds.T if embeds.dim() == 2 else torch.einsum("nd,ncd->nc", grad, embeds)
        return self.predict(dots, gain=gain)

    def predict(self, dots: Float[Tensor, "n c"], *, gain: float) -> Float[Tensor, "n c"]:
        """Return the mean prediction, given the candidates' products with the mean gradient."""
        offset = (self.grads * self.points).sum(-1).mean(-1)  # (n,)
        return self.losses.mean(-1)[:, None] + gain * (dots - offset[:, None])


def check_num_words(num_words: int) -> None:
    """Raise a ValueError for a number of linearisation points that the common words cannot give."""
    if not 1 <= num_words <= len(COMMON_WORDS):
        raise ValueError(f"num_words must be between 1 and {len(COMMON_WORDS)}, was: {num_words}.")


def common_word_embeds(model: HasVocabulary, num_words: int) -> Float[Tensor, "k d"]:
    """Return a linearisation point for each of the first common words: the mean of its pieces."""
    rows = model.tokenizer.encode_batch([" " + w for w in COMMON_WORDS[:num_words]])
    return torch.stack([model.vocabulary[torch.tensor(ids)].float().mean(0) for ids in rows])


def linearise(
    loss: EmbedLoss,
    ids: StandIns,
    problems: Int[Tensor, " n"],
    points: Float[Tensor, "k d"],
) -> Linear:
    """Return losses and gradients, detached, of n * k passes: each point at each position."""
    n, k = len(ids.token_ids), points.shape[0]
    rows = torch.arange(n).repeat_interleave(k)
    token_ids = ids.token_ids[rows]
    points = points.detach()
    inserted = points.repeat(n, 1).requires_grad_(True)  # (n k, d)
    context = loss.vocabulary[token_ids.ids].detach().float()
    with torch.enable_grad():
        embeds = context.index_put((torch.arange(n * k), ids.places[rows]), inserted)
        losses = loss.loss(token_ids, problems[rows], embeds=embeds)
        (grads,) = torch.autograd.grad(losses.sum(), inserted)
    return Linear(points, losses.detach().reshape(n, k), grads.reshape(n, k, -1))


@dataclass(eq=False)
class LinearScorer:
    """The base of scorers by a gradient: a term, linearised at positions, and the cost of that."""

    loss: EmbedLoss
    table: RetokenizationTable
    points: Float[Tensor, "k d"]
    cost: float = field(default=0.0, kw_only=True)  # Of a gradient for each position and point.

    def linearise(self, positions: Positions, *, at_last_words: bool = False) -> Linear:
        """Return first-order information about a word at each position, or the last left of it."""
        ids = put_stand_ins(self.loss.tokenizer, positions, for_last_words=at_last_words)
        linear = linearise(self.loss, ids, positions.problems, self.points)
        self.cost += GRADIENT_COST * linear.losses.numel()
        return linear


@final
@dataclass(frozen=True)
class Gradient:
    """Proposes by the gradient at linearisation points, token by token."""

    name: ClassVar[str] = "gradient"
    num_words: int = 16  # of COMMON_WORDS, 1 to 64

    def __post_init__(self) -> None:
        """Check the count."""
        check_num_words(self.num_words)

    def init(
        self, primary: HasVocabulary, secondary: HasVocabulary, table: RetokenizationTable
    ) -> "_GradientState":
        """Return the linearisation points and mean pieces of two models, made when needed."""
        return _GradientState(table, secondary, self.num_words)


@final
@dataclass(frozen=True, eq=False)
class _GradientState:
    table: RetokenizationTable
    secondary: HasVocabulary
    num_words: int

    @cached_property
    def points(self) -> Float[Tensor, "k d"]:
        return common_word_embeds(self.secondary, self.num_words)

    @cached_property
    def embeds(self) -> Float[Tensor, "v d"]:
        """Mean secondary embedding of every primary token that begins a word."""
        return mean_pieces(self.secondary.vocabulary, self.table.pieces)

    def bind(self, loss: EmbedLoss) -> "_GradientScorer":
        return _GradientScorer(loss, self.table, self.points, self)


@final
@dataclass(eq=False)
class _GradientScorer(LinearScorer):
    state: _GradientState

    def word_initial(self, positions: Positions, tokens: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        linear = self.linearise(positions)
        return linear.predict_mean(self.state.embeds[tokens], gain=GAIN)

    def word_internal(
        self, positions: Positions, tokens: Int[Tensor, "n c"]
    ) -> Float[Tensor, "n c"]:
        if not tokens.numel():
            return torch.zeros(tokens.shape)
        linear = self.linearise(positions, at_last_words=True)
        words = lengthened_words(self.table, positions, tokens)
        pieces = PaddedIds.from_lists([self.table.encode_word(word) for word in words])
        embeds = mean_pieces(self.state.secondary.vocabulary, pieces)
        return linear.predict_mean(embeds.reshape(*tokens.shape, -1), gain=GAIN)


def mean_pieces(vocabulary: Float[Tensor, "v d"], pieces: PaddedIds) -> Float[Tensor, "b d"]:
    """Return the mean embedding of each row of ids, shape (b, d); zero for an empty row."""
    result = torch.zeros(len(pieces), vocabulary.shape[1], device=vocabulary.device)
    for m in torch.unique(pieces.lengths).tolist():
        if m:
            rows = torch.nonzero(pieces.lengths == m).flatten()
            result[rows] = vocabulary[pieces.ids[rows, :m]].float().mean(dim=1)
    return result
