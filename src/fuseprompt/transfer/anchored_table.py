"""A frame table that starts from where the text stands: its own output, moved by each token.

A context-free table says how good a token is by itself. This one asks the secondary once for the
text as it is, and predicts the output after a token as that output plus what the token does to
others: its row in the frame table less the mean row. A tone that the text has already is then worth
no further word, and a word that the text has said already moves an embedding less than a new one.
One forward pass for a text; all else is a matrix product. Read next:
`fuseprompt.transfer.frame_table`.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.transfer.base import Meter, Slots, TokenScorer
from fuseprompt.transfer.frame_table import FrameTable, shrinkage

#: Share of a token's difference that it makes in a text as long as a frame; it falls with the root
#: of the length. Measured in 36 contexts beside the benchmark's (docs/decisions.md).
_SHARE_NEW: Final = 1.0
_SHARE_CONTINUED: Final = 0.66

#: How far from 1 the length of a normalised output may be.
_UNIT: Final = 1e-3


@final
@dataclass(frozen=True)
class AnchoredTable:
    """Transfer by a table of differences that are added to each text's own output.

    Attributes:
        frames: The table.
    """

    frames: FrameTable = field(default_factory=FrameTable)

    @property
    def name(self) -> str:
        """Name in results."""
        return "anchored"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term; makes the frame table if need be."""
        vectors, row_of = self.frames.vectors(table, loss)
        return AnchoredScorer(
            loss,
            self.frames.frames,
            vectors.float(),
            row_of,
            mean_row(vectors, row_of[table.starts_word]),
            mean_row(vectors, row_of[table.joins_word]),
            is_linear(loss, vectors.shape[1]),
        )


@final
@dataclass(frozen=True, eq=False)
class AnchoredScorer:
    """Predicts losses from each text's output and the table.

    Attributes:
        loss: The term with its targets.
        frames: Beginnings behind which the table was made.
        vectors: Mean output of each distinct token, shape (r, o).
        row_of: Row of each primary token, -1 for none.
        new: Mean row of the new words, shape (o,).
        joined: Mean row of the continuations, shape (o,).
        is_linear: Whether the loss is a linear function of the output, as a cosine is.
        share_new: Share of its difference that a new word makes in a text as long as a frame.
        meter: Adds up the texts that were asked for.
    """

    loss: EmbedLoss
    frames: tuple[str, ...]
    vectors: Float[Tensor, "r o"]
    row_of: Int[Tensor, " v"]
    new: Float[Tensor, " o"]
    joined: Float[Tensor, " o"]
    is_linear: bool
    share_new: float = _SHARE_NEW
    meter: Meter = field(default_factory=Meter)
    _outputs: dict[str, Tensor] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """One forward pass for each text."""
        return self.meter.total

    @cached_property
    def _squares(self) -> Float[Tensor, " r"]:
        """Squared length of each row's difference from the mean new word."""
        squares = self.vectors.square().sum(1) - 2 * self.vectors @ self.new
        return squares + self.new.square().sum()

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        """Return the loss of each text's output moved by each word's row less the mean row."""
        anchors = self.anchors(slots)
        share = self.share_new * shrinkage(self.frames, slots, added=1).to(anchors.device)
        rows = self.row_of[words]
        if self.is_linear and len(self.vectors) and _is_unit(anchors):
            moved = self._projected(anchors, slots.problems, share)[:, rows.clamp_min(0)]
        else:
            # One slot after another: outputs of all words are as large as the table.
            moved = torch.cat(
                [
                    self._moved(anchors[i : i + 1], slots.problems[i : i + 1], each, rows[None])
                    for i, each in enumerate(share[:, None])
                ]
            )
        return _worst_where(rows.expand(len(slots), -1) < 0, moved)

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """Return the same for tokens that lengthen the last word."""
        anchors = self.anchors(slots)
        share = _SHARE_CONTINUED * shrinkage(self.frames, slots, added=0).to(anchors.device)
        rows = self.row_of[tokens]
        return _worst_where(
            rows < 0, self._moved(anchors, slots.problems, share, rows, mean=self.joined)
        )

    def anchors(self, slots: Slots) -> Float[Tensor, "n o"]:
        """Return the output of each slot's text without a token in it; texts once per step."""
        texts = [left + right for left, right in zip(slots.left, slots.right, strict=True)]
        unknown = sorted(set(texts) - set(self._outputs))
        if unknown:
            tokenizer = self.loss.model.tokenizer
            ids = [tokenizer.frame(row) for row in tokenizer.encode_batch(unknown)]
            with torch.no_grad():
                outputs = self.loss.model.outputs(PaddedIds.from_lists(ids)).float()
            self.meter.add(float(len(unknown)))
            known = {text: self._outputs[text] for text in texts if text in self._outputs}
            self._outputs.clear()
            self._outputs.update(known, **dict(zip(unknown, outputs, strict=True)))
        return torch.stack([self._outputs[text] for text in texts])

    def _moved(
        self,
        anchors: Float[Tensor, "n o"],
        problems: Int[Tensor, " n"],
        share: Float[Tensor, " n"],
        rows: Int[Tensor, "n c"],
        *,
        mean: Float[Tensor, " o"] | None = None,
    ) -> Float[Tensor, "n c"]:
        """Return the loss of each anchor moved by each of its rows; the mean row is new words'."""
        if not rows.numel() or not len(self.vectors):
            return torch.zeros(rows.shape, device=anchors.device)
        mean = self.new if mean is None else mean
        differences = self.vectors[rows.clamp_min(0)] - mean
        return moved_losses(self.loss, anchors, problems, share[:, None, None] * differences)

    def _projected(
        self,
        anchors: Float[Tensor, "n o"],
        problems: Int[Tensor, " n"],
        share: Float[Tensor, " n"],
    ) -> Float[Tensor, "n r"]:
        """Return what `_moved` does for all rows, of a linear loss on the sphere.

        With a the anchor, d the difference, s the share and g the gradient, the loss is
        c + g.(a + s d) / |a + s d|: three dot products with the rows, and no output is made.
        """
        with torch.enable_grad():
            outputs = anchors.detach().requires_grad_()
            losses = self.loss.compare(outputs, problems)
            (gradient,) = torch.autograd.grad(losses.sum(), outputs)
        losses, at = losses.detach(), (gradient * anchors).sum(1)
        along = (self.vectors @ anchors.T - anchors @ self.new).T  # a.d, shape (n, r)
        across = (self.vectors @ gradient.T - gradient @ self.new).T  # g.d
        s = share[:, None]
        length = (anchors.square().sum(1)[:, None] + 2 * s * along + s**2 * self._squares).sqrt()
        return (losses - at)[:, None] + (at[:, None] + s * across) / length.clamp_min(1e-6)


def moved_losses(
    loss: EmbedLoss,
    anchors: Float[Tensor, "n o"],
    problems: Int[Tensor, " n"],
    moves: Float[Tensor, "n c o"],
) -> Float[Tensor, "n c"]:
    """Return the loss of each anchor plus each of its moves, on the unit sphere if it lies there.

    Args:
        loss: The term with its targets.
        anchors: Outputs of texts.
        problems: Whose target each is compared with.
        moves: What is added to each.

    Returns:
        Losses, shape (n, c).
    """
    outputs = anchors[:, None] + moves
    if _is_unit(anchors):
        outputs = torch.nn.functional.normalize(outputs, dim=-1)
    each = problems.repeat_interleave(moves.shape[1])
    return loss.compare(outputs.flatten(0, 1), each).view(moves.shape[:2])


def mean_row(vectors: Float[Tensor, "r o"], rows: Int[Tensor, " k"]) -> Float[Tensor, " o"]:
    """Return the mean of distinct rows in fp32; zero if there is none."""
    rows = torch.unique(rows[rows >= 0])
    if not len(rows):
        return torch.zeros(vectors.shape[1], device=vectors.device)
    return vectors[rows].float().mean(0)


def is_linear(loss: EmbedLoss, width: int) -> bool:
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


def _worst_where(absent: Bool[Tensor, "n c"], losses: Float[Tensor, "n c"]) -> Tensor:
    """Return losses with those of tokens without a row set to the highest."""
    if not losses.numel():
        return losses
    return torch.where(absent.to(losses.device), losses.max(), losses)
