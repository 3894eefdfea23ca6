"""The additive word table, the default proposal: a text's own output, moved by each word.

In a search it finds with 16 exact losses what the word table finds with 64.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary, TextModel
from fuseprompt.objective.bound_term import BoundTerm, ProductTerm
from fuseprompt.proposals.base import Positions, Scorer, lengthened_words
from fuseprompt.proposals.word_table import TemplateReader, WordTable, WordTableState
from fuseprompt.text.retokenize import RetokenizationTable, encode_whole, last_word

#: White-space words of the word table's template with a word in it.
_TEMPLATE_WORDS: Final = 4.0

#: Share of a token's difference that it makes in a text as long as the template; it falls with the
#: root of the length. Measured in 36 contexts other than the benchmark's (docs/decisions.md).
_SHARE_INITIAL: Final = 0.75
_SHARE_INTERNAL: Final = 0.6

#: How far from 1 the length of a normalised output may be.
_UNIT: Final = 1e-3


@final
@dataclass(frozen=True)
class AdditiveWordTable:
    """Proposes by differences between words of a word table, added to each text's own output.

    A word-initial token moves the output by its row less the mean row, so that a repeated word or
    sentiment is worth little. A word-internal token moves it by the longer word's output less the
    last word's ("skateboards" less "skate"). A term without one output per text gets what
    `WordTable` gives it.
    """

    name: ClassVar[str] = "additive"
    words: WordTable = field(default_factory=WordTable)

    def init(
        self, primary: HasVocabulary, secondary: TextModel, table: RetokenizationTable
    ) -> "AdditiveState":
        """Return the word table of two models; it is read, or made, when a term first asks."""
        return AdditiveState(self.words.init(primary, secondary, table))


@final
@dataclass(frozen=True, eq=False)
class AdditiveState:
    """The word table of a pair of models, and what follows from it."""

    words: WordTableState

    @cached_property
    def vectors(self) -> Float[Tensor, "r o"]:
        """The table in single precision."""
        return self.words.vectors.float()

    @cached_property
    def mean(self) -> Float[Tensor, " o"]:
        """The mean of the distinct rows; zero if there is none."""
        rows = torch.unique(self.words.row_of[self.words.row_of >= 0])
        if not len(rows):
            return torch.zeros(self.vectors.shape[1], device=self.vectors.device)
        return self.vectors[rows].mean(0)

    @cached_property
    def squares(self) -> Float[Tensor, " r"]:
        """Squared length of each row's difference from the mean."""
        squares = self.vectors.square().sum(1) - 2 * self.vectors @ self.mean
        return squares + self.mean.square().sum()

    def bind(self, loss: EmbedLoss) -> Scorer:
        """Return a scorer for a term; the word table's own one where it compares no outputs."""
        if not loss.compares_outputs:
            return self.words.bind(loss)
        reader = TemplateReader(loss.model)
        return _AdditiveScorer(self, loss, _is_linear(loss, self.vectors.shape[1]), reader)


@final
@dataclass(frozen=True, eq=False)
class _AdditiveScorer:
    state: AdditiveState
    loss: EmbedLoss
    is_linear: bool
    reader: TemplateReader
    outputs: dict[str, Tensor] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """One forward pass for each text, and for each last word with and without a token."""
        return self.reader.cost

    def word_initial(self, positions: Positions, tokens: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        """Return the loss of each text's output moved by each word's row less the mean row."""
        # Of all places between the words of a text one is computed.
        pairs = zip(positions.texts, positions.problems.tolist(), strict=True)
        first: dict[tuple[str, int, int], int] = {}
        keys = [(*pair, n) for pair, n in zip(pairs, positions.count_words(), strict=True)]
        for i, key in enumerate(keys):
            first.setdefault(key, i)
        if len(first) < len(keys):
            number = {key: i for i, key in enumerate(first)}
            moved = self.word_initial(positions[list(first.values())], tokens)
            return moved[torch.tensor([number[key] for key in keys], device=moved.device)]
        own, state = self._own(positions), self.state
        share = _SHARE_INITIAL * _shrinkage(positions, added=1).to(own.device)
        rows = state.words.row_of[tokens]
        known = rows.clamp_min(0)
        if not rows.numel() or not len(state.vectors):
            moved = torch.zeros(len(positions), len(rows), device=own.device)
        elif self.is_linear:
            moved = self._projected(own, positions.problems, share)[:, known]
        elif self.products is not None and _is_unit(own):
            moved = self._by_products(own, positions.problems, share)[:, known]
        else:
            # One position after another: outputs of all words are as large as the table.
            moves = state.vectors[known] - state.mean
            moved = torch.cat(
                [
                    self._losses(own[i : i + 1], positions.problems[i : i + 1], each * moves[None])
                    for i, each in enumerate(share)
                ]
            )
        if not moved.numel():
            return moved
        return torch.where((rows < 0).expand(len(positions), -1), moved.max(), moved)

    def word_internal(
        self, positions: Positions, tokens: Int[Tensor, "n c"]
    ) -> Float[Tensor, "n c"]:
        """Return the loss of each text's output moved by what each token does to its last word."""
        own = self._own(positions)
        if not tokens.numel():
            return torch.zeros(tokens.shape, device=own.device)
        lasts = [last_word(left).strip() for left in positions.left]
        table = self.state.words.table
        words = [word.strip() for word in lengthened_words(table, positions, tokens)]
        outputs = self.reader.read([word for word in [*lasts, *words] if word])
        # A text without a last word is moved as by a word-initial token.
        mean = self.state.mean
        before = torch.stack([outputs[last].float() if last else mean for last in lasts])
        after = torch.stack([outputs[word].float() if word else mean for word in words])
        share = _SHARE_INTERNAL * _shrinkage(positions, added=0).to(own.device)
        moves = after.view(*tokens.shape, -1) - before[:, None]
        return self._losses(own, positions.problems, share[:, None, None] * moves)

    @cached_property
    def products(self) -> Float[Tensor, "p k o"] | None:
        """The directions whose products with an output are all that the loss reads."""
        if not isinstance(self.loss, BoundTerm) or not isinstance(self.loss.term, ProductTerm):
            return None
        width = self.state.vectors.shape[1]
        return self.loss.term.directions(self.loss.targets, width).to(self.state.vectors.device)

    def _by_products(
        self, own: Float[Tensor, "n o"], problems: Int[Tensor, " n"], share: Float[Tensor, " n"]
    ) -> Float[Tensor, "n r"]:
        """Return what `_losses` does for all rows, from products with a few directions."""
        assert isinstance(self.loss, BoundTerm)
        assert isinstance(self.loss.term, ProductTerm)
        assert self.products is not None
        vectors, mean = self.state.vectors, self.state.mean
        losses = torch.zeros(len(own), len(vectors), device=own.device)
        for problem in torch.unique(problems).tolist():
            directions = self.products[problem]  # (k, o)
            mine = torch.nonzero(problems == problem).flatten()
            at = mine.to(own.device)
            texts = own[at]
            # One product with the table for all texts of a problem: it is larger than any cache.
            every = torch.cat([directions, texts])
            moves = vectors @ every.T - every @ mean  # (r, k + n)
            towards, along = moves[:, : len(directions)], moves[:, len(directions) :]
            for row, text, s, a in zip(mine.tolist(), texts, share[at], along.T, strict=True):
                length = text.square().sum() + 2 * s * a + s**2 * self.state.squares
                products = directions @ text + s * towards
                products = products / length.sqrt().clamp_min(1e-6)[:, None]
                losses[row] = self.loss.term.compare_products(products, directions[None])
        return losses

    def _own(self, positions: Positions) -> Float[Tensor, "n o"]:
        outputs, num_read = own_outputs(self.loss, positions, self.outputs)
        self.reader.cost += num_read
        return outputs

    def _losses(
        self,
        own: Float[Tensor, "n o"],
        problems: Int[Tensor, " n"],
        moves: Float[Tensor, "n c o"],
    ) -> Float[Tensor, "n c"]:
        """Return the loss of each output plus each of its moves, on the unit sphere if it is."""
        outputs = own[:, None] + moves
        if _is_unit(own):
            outputs = torch.nn.functional.normalize(outputs, dim=-1)
        each = problems.repeat_interleave(moves.shape[1])
        return self.loss.compare(outputs.flatten(0, 1), each).view(moves.shape[:2])

    def _projected(
        self, own: Float[Tensor, "n o"], problems: Int[Tensor, " n"], share: Float[Tensor, " n"]
    ) -> Float[Tensor, "n r"]:
        """Return what `_losses` does for all rows, of a linear loss."""
        # With a the text's output, d the difference, s the share and g the gradient, the loss is
        # c + g.(a + s d) / |a + s d|: three dot products with the rows, and no output is made.
        with torch.enable_grad():
            outputs = own.detach().requires_grad_()
            losses = self.loss.compare(outputs, problems)
            (gradient,) = torch.autograd.grad(losses.sum(), outputs)
        losses, at = losses.detach(), (gradient * own).sum(1)
        vectors, mean, s = self.state.vectors, self.state.mean, share[:, None]
        if getattr(self.loss.model, "pools_max", False):
            # A maximum over tokens grows only where a word exceeds it, and by all of that.
            used = torch.nonzero(gradient.abs().sum(0)).flatten()
            grown = (vectors[:, used] - own[:, None, used]).clamp_min(0.0)
            return losses[:, None] + torch.einsum("nru,nu->nr", grown, gradient[:, used])
        every = torch.cat([own, gradient])  # The table is larger than any cache: one product.
        along, across = (vectors @ every.T - every @ mean).T.chunk(2)  # a.d and g.d, shape (n, r)
        if not _is_unit(own):
            return losses[:, None] + s * across
        length = (own.square().sum(1)[:, None] + 2 * s * along + s**2 * self.state.squares).sqrt()
        return (losses - at)[:, None] + (at[:, None] + s * across) / length.clamp_min(1e-6)


def own_outputs(
    loss: EmbedLoss, positions: Positions, kept: dict[str, Tensor]
) -> tuple[Float[Tensor, "n o"], int]:
    """Return the output of each text without a token at its position, and how many were read.

    What was read is kept by the term, or in `kept` where a loss is none.
    """
    known = loss.known if isinstance(loss, BoundTerm) else kept
    unknown = sorted(set(positions.texts) - set(known))
    outputs = dict(known)
    if unknown:
        read = getattr(loss.model, "outputs_of_many", loss.model.outputs)
        with torch.no_grad():
            new = read(encode_whole(loss.model.tokenizer, unknown)).float()
        outputs.update(zip(unknown, new, strict=True))
        if isinstance(loss, BoundTerm):
            loss.remember(outputs)
        else:
            kept.update(outputs)
    return torch.stack([outputs[text] for text in positions.texts]), len(unknown)


def _shrinkage(positions: Positions, *, added: int) -> Float[Tensor, " n"]:
    """Return what a token does in each text, made longer by `added` words, as a share of 1."""
    counts = torch.tensor([max(1, count + added) for count in positions.count_words()])
    return (_TEMPLATE_WORDS / counts).clamp_max(1.0).sqrt()


def _is_linear(loss: EmbedLoss, width: int) -> bool:
    """Return whether a loss halfway between two random outputs is the mean of theirs."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.randn(2, width, generator=generator).to(loss.vocabulary.device)
    first, middle, last = loss.compare(
        torch.stack([ends[0], ends.mean(0), ends[1]]), torch.zeros(3, dtype=torch.long)
    ).tolist()
    return bool(abs(middle - (first + last) / 2) <= 1e-4 * max(1.0, abs(first), abs(last)))


def _is_unit(outputs: Float[Tensor, "n o"]) -> bool:
    """Return whether outputs lie on the unit sphere, so that predicted ones belong there too."""
    return bool(((outputs.norm(dim=1) - 1).abs() <= _UNIT).all())
