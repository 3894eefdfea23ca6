"""A table of every token behind several beginnings of captions: new words and continuations alike.

The word table sees a word in one frame and no continuation at all before it is asked. Here every
token of printable ASCII is read behind each of a few short beginnings, " boards" as a new word and
"boards" joined to the last word, and the secondary's outputs are averaged: what they have in common
belongs to the token, what differs to the beginning. Made once for a secondary and kept on disk; a
look-up costs nothing, for continuations too. It knows nothing of the text around the token. Read
next: `fuseprompt.transfer.word_table`, the simpler control.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.cache import cache_dir
from fuseprompt.models.base import EmbedLoss, HasVocabulary, TextModel
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.transfer import kept_vectors
from fuseprompt.transfer.base import Slots, TokenScorer
from fuseprompt.transfer.word_table import OnProgress

#: Beginnings behind which every token is read. Short, so that a token weighs in them; the last
#: words differ in kind, since continuations are joined to them. None is a benchmark's context.
FRAMES: Final = ("A man", "Two small children playing", "A picture of")

#: Slope of exact losses on the table's, new words and continuations, in a text as long as a frame;
#: it falls with the root of the length. Measured in 36 contexts beside the benchmark's
#: (docs/decisions.md).
_SLOPE_NEW: Final = 0.85
_SLOPE_CONTINUED: Final = 0.55

#: Texts per call while a table is made; progress is reported after each.
_CHUNK: Final = 1024


@final
@dataclass(frozen=True)
class FrameTable:
    """Context-free transfer that averages over frames and covers continuations.

    Attributes:
        frames: Beginnings of texts, each ending in a word.
        gain: Factor of the predicted differences between tokens. 1 is right where the table is
            asked alone; where its predictions are averaged with others, differences get too small.
        folder: Where tables are kept; the cache folder by default.
        on_progress: Called with (texts done, texts in all) while a table is made.
    """

    frames: tuple[str, ...] = FRAMES
    gain: float = 1.0
    folder: Path | None = None
    on_progress: OnProgress | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the frames.

        Raises:
            ValueError: If there is none, or one that does not end in a word.
        """
        if not self.frames or not all(f and f[-1].isalnum() for f in self.frames):
            raise ValueError(
                "frames must be one or more texts that each end in a word, were: "
                f"{self.frames!r}. Take blanks and punctuation off their ends."
            )

    @property
    def name(self) -> str:
        """Name in results."""
        return "frames"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term; makes the table if it is not on disk."""
        return _FrameScorer(loss, self.frames, self.gain, *self.vectors(table, loss))

    def vectors(
        self, table: RetokenizationTable, loss: EmbedLoss
    ) -> tuple[Float[Tensor, "r o"], Int[Tensor, " v"]]:
        """Return the secondary's mean output for each distinct token, and each token's row.

        Args:
            table: From the primary's tokens to the term's.
            loss: The term with its targets.

        Returns:
            The table in half precision, made if it is not on disk, and rows, -1 for tokens that
            are neither a new word nor a continuation; both on the secondary's device.
        """
        device = loss.vocabulary.device
        folder = self.folder if self.folder is not None else cache_dir() / "frame-tables"

        def make() -> tuple[Tensor, Tensor]:
            # A term that compares no outputs says so before a table is made in vain.
            loss.compare(_mean_outputs(loss.model, self.frames, [" it"]), torch.tensor([0]))
            vectors, row_of = load_or_make(
                loss.model, table, folder, frames=self.frames, on_progress=self.on_progress
            )
            return vectors.to(device), row_of.to(device)

        return table.memo.recall(("frame table", self.frames, folder), (loss.model,), make)


@final
@dataclass(frozen=True, eq=False)
class _FrameScorer:
    loss: EmbedLoss
    frames: tuple[str, ...]
    gain: float
    vectors: Float[Tensor, "r o"]
    row_of: Int[Tensor, " v"]
    cost: float = 0.0
    _by_problem: dict[int, Tensor] = field(default_factory=dict)

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        return self._in_context(slots, words.expand(len(slots), -1), 1, _SLOPE_NEW)

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        return self._in_context(slots, tokens, 0, _SLOPE_CONTINUED)

    def _mean_loss(self, problem: int) -> Float[Tensor, " r"]:
        """Return the loss of each token's mean output, against the target of a problem."""
        if problem not in self._by_problem:
            rows = torch.full((len(self.vectors),), problem)
            self._by_problem[problem] = self.loss.compare(self.vectors.float(), rows)
        return self._by_problem[problem]

    def _in_context(
        self, slots: Slots, tokens: Int[Tensor, "n c"], added: int, slope: float
    ) -> Float[Tensor, "n c"]:
        """Shrink towards the mean token: a token moves the loss of a long text less.

        Args:
            slots: The slots.
            tokens: Tokens of each.
            added: Words by which a token makes the text longer.
            slope: Of the exact loss in a text as long as the frames.

        Returns:
            Predicted losses, shape (n, c).
        """
        rows = self.row_of[tokens]
        known = torch.stack([self._mean_loss(p) for p in slots.problems.tolist()])  # (n, r)
        if not known.shape[1]:
            return torch.zeros(tokens.shape)
        alone = torch.where(rows >= 0, known.gather(1, rows.clamp_min(0)), known.max())
        mean = known.mean(1, keepdim=True)
        shrink = shrinkage(self.frames, slots, added=added)[:, None].to(mean.device)
        return mean + self.gain * slope * shrink * (alone - mean)


def shrinkage(frames: Sequence[str], slots: Slots, *, added: int) -> Float[Tensor, " n"]:
    """Return how much less a token does in each text than behind the frames.

    Args:
        frames: Beginnings behind which tokens were read.
        slots: The texts.
        added: Words by which a token makes a text longer.

    Returns:
        The root of (words of a frame) / (words of the text), at most 1, shape (n,).
    """
    frame = sum(len(f.split()) + added for f in frames) / len(frames)
    counts = [
        max(1, len(left.split()) + added + len(right.split()))
        for left, right in zip(slots.left, slots.right, strict=True)
    ]
    return (frame / torch.tensor(counts)).clamp_max(1.0).sqrt()


def load_or_make(
    model: TextModel,
    table: RetokenizationTable,
    folder: Path,
    *,
    frames: Sequence[str] = FRAMES,
    on_progress: OnProgress | None = None,
) -> tuple[Float[Tensor, "r o"], Int[Tensor, " v"]]:
    """Return the mean output of all distinct tokens, and each primary token's row (-1 for none).

    Tokens with equal secondary ids behind every frame share a row.

    Args:
        model: The secondary.
        table: From the primary's tokens to the secondary's.
        folder: Where tables are kept.
        frames: Beginnings behind which each token is read.
        on_progress: Called with (texts done, texts in all) while the table is made.

    Returns:
        The model's mean output for each distinct token in half precision, and rows.
    """
    texts, row_of = distinct_tokens(table, frames)
    file = folder / f"{fingerprint(model, table, frames)}.safetensors"
    # A table without tokens is as wide as any: the width comes from a word of its own.
    probe = _mean_outputs(model, frames, texts[:1] or [" it"])[: len(texts)]

    def make() -> Tensor:
        # Tokens of like length side by side: a row of padding costs as much as one of words.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        vectors = torch.zeros(len(texts), probe.shape[1], dtype=torch.float16)
        for start in range(0, len(order), _CHUNK):
            chunk = order[start : start + _CHUNK]
            vectors[chunk] = _mean_outputs(model, frames, [texts[i] for i in chunk])
            if on_progress is not None:
                on_progress((start + len(chunk)) * len(frames), len(texts) * len(frames))
        return vectors

    return kept_vectors.read_or_make(file, len(texts), probe, make), row_of


def distinct_tokens(
    table: RetokenizationTable, frames: Sequence[str]
) -> tuple[list[str], Int[Tensor, " v"]]:
    """Return the tokens that the secondary tells apart behind some frame, and each token's row.

    Args:
        table: From the primary's tokens to the secondary's.
        frames: Beginnings of texts.

    Returns:
        Texts of tokens, and one row per token of the primary, -1 for what is neither a new word nor
        a continuation.
    """
    texts = table.primary.token_texts
    tokens = torch.nonzero(table.starts_word | table.joins_word).flatten().tolist()
    read = [table.secondary.encode_batch([f + texts[t] for t in tokens]) for f in frames]
    row_of = torch.full((len(texts),), -1, dtype=torch.long)
    rows: dict[tuple[tuple[int, ...], ...], int] = {}
    kept = []
    for i, token in enumerate(tokens):
        key = tuple(tuple(ids[i]) for ids in read)
        if key not in rows:
            rows[key] = len(rows)
            kept.append(texts[token])
        row_of[token] = rows[key]
    return kept, row_of


def _mean_outputs(
    model: TextModel, frames: Sequence[str], texts: Sequence[str]
) -> Float[Tensor, "b o"]:
    """Return the mean over frames of the output for each text, in half precision, shape (b, o)."""
    total = torch.zeros(())
    for frame in frames:
        rows = model.tokenizer.encode_batch([frame + text for text in texts])
        ids = PaddedIds.from_lists([model.tokenizer.frame(row) for row in rows])
        with torch.no_grad():
            total = total + model.outputs(ids).float().cpu()
    return (total / len(frames)).half()


def fingerprint(model: TextModel, table: RetokenizationTable, frames: Sequence[str]) -> str:
    """Return a hash of everything that a table depends on, other than the body of the model."""
    tokenizers = (table.primary.fingerprint, table.secondary.fingerprint)
    return kept_vectors.fingerprint(model, *frames, *tokenizers)
