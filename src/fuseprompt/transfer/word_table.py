"""The context-free word table: every new word judged alone, once per secondary, and kept on disk.

A control that a gradient must beat, and part of what ships: one matrix product per problem then
says which words match a target, with no gradient at all. It knows nothing of the text around the
word. Continuations get the table's answer for the whole last word, computed when asked for and
remembered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.cache import cache_dir
from fuseprompt.models.base import EmbedLoss, HasVocabulary, TextModel
from fuseprompt.models.image_text import ClipModel
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.transfer import kept_vectors
from fuseprompt.transfer.base import Meter, Slots, TokenScorer, continued_words

#: The neutral frame in which a word stands alone.
FRAME: Final = "This is about{word}."

#: The frame up to its word.
BEGINNING: Final = FRAME.format(word="").rstrip(".")

#: White-space words of the frame, the word itself included.
_FRAME_WORDS: Final = 3.0

#: Texts per call while a table is made; progress is reported after each.
_CHUNK = 1024

OnProgress = Callable[[int, int], None]


@final
@dataclass(frozen=True)
class WordTable:
    """Context-free transfer.

    Attributes:
        folder: Where tables are kept; the cache folder by default.
        on_progress: Called with (words done, words in all) while a table is made.
    """

    folder: Path | None = None
    on_progress: OnProgress | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name in results."""
        return "context-free"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term; makes the table if it is not on disk."""
        return TableScorer(loss, table, *self.vectors(table, loss))

    def vectors(
        self, table: RetokenizationTable, loss: EmbedLoss
    ) -> tuple[Float[Tensor, "w o"], Int[Tensor, " v"]]:
        """Return the secondary's output for each distinct word, and the row of each primary token.

        Args:
            table: From the primary's tokens to the term's.
            loss: The term with its targets.

        Returns:
            The table, made if it is not on disk, and rows, -1 for tokens that begin no word; both
            on the secondary's device.
        """
        device = loss.vocabulary.device
        folder = self.folder if self.folder is not None else cache_dir() / "word-tables"

        def make() -> tuple[Tensor, Tensor]:
            # A term that compares no outputs says so before a table is made in vain.
            loss.compare(framed_outputs(loss.model, [" it"]), torch.tensor([0]))
            vectors, row_of = load_or_make(loss.model, table, folder, on_progress=self.on_progress)
            return vectors.to(device), row_of.to(device)

        return table.memo.recall(("word table", folder), (loss.model,), make)


@final
@dataclass(frozen=True, eq=False)
class TableScorer:
    """Scores new words by a table of the secondary's outputs for words that stand alone.

    Attributes:
        loss: The term with its targets.
        table: From the primary's tokens to the term's.
        vectors: Output for each distinct word.
        row_of: Row of each primary token, -1 for tokens that begin no word.
    """

    loss: EmbedLoss
    table: RetokenizationTable
    vectors: Float[Tensor, "w o"]
    row_of: Int[Tensor, " v"]

    @property
    def cost(self) -> float:
        """One forward pass for each last word that continuations asked about."""
        return self._framed.meter.total

    @cached_property
    def _framed(self) -> "FramedWords":
        return FramedWords(self.loss.model)

    @cached_property
    def _by_problem(self) -> dict[int, Float[Tensor, " w"]]:
        return {}

    def _alone(self, problem: int) -> Float[Tensor, " w"]:
        """Return the loss of each distinct word alone, against the target of a problem."""
        known = self._by_problem
        if problem not in known:
            known[problem] = self.loss.compare(
                self.vectors, torch.full((len(self.vectors),), problem)
            )
        return known[problem]

    def _in_context(self, slots: Slots, alone: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """Shrink towards the mean word: one more word moves the loss of a long text less."""
        mean = torch.stack([self._alone(p).mean() for p in slots.problems.tolist()])[:, None]
        counts = [
            len(left.split()) + 1 + len(right.split())
            for left, right in zip(slots.left, slots.right, strict=True)
        ]
        shrink = (_FRAME_WORDS / torch.tensor(counts)).clamp_max(1.0)[:, None].to(mean.device)
        return mean + shrink * (alone - mean)

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        """Return the loss of each word alone, drawn to the mean as the text grows."""
        rows = self.row_of[words]
        alone = torch.stack([self._alone(p)[rows] for p in slots.problems.tolist()])
        return self._in_context(slots, torch.where(rows[None] >= 0, alone, alone.max()))

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """Return the same for the last word with each token joined to it."""
        if not tokens.numel():
            return torch.zeros(tokens.shape)
        words = [word.strip() for word in continued_words(self.table, slots, tokens)]
        outputs = self._framed.read(words)
        problems = slots.problems[:, None].expand(tokens.shape).reshape(-1)
        alone = self.loss.compare(torch.stack([outputs[w] for w in words]), problems)
        return self._in_context(slots, alone.reshape(tokens.shape))


@final
@dataclass(frozen=True, eq=False)
class FramedWords:
    """Reads words in the frame, each of them once.

    Attributes:
        model: The secondary.
        meter: Adds up the words that were read.
    """

    model: TextModel
    meter: Meter = field(default_factory=Meter)
    _outputs: dict[str, Float[Tensor, " o"]] = field(default_factory=dict)

    def read(self, words: Sequence[str]) -> Mapping[str, Float[Tensor, " o"]]:
        """Return the outputs by word of all words read so far, these among them.

        Args:
            words: Words without blanks around them; in the frame a blank stands before them.
        """
        unknown = sorted(set(words) - set(self._outputs))
        if unknown:
            outputs = framed_outputs(self.model, [f" {word}" for word in unknown])
            self.meter.add(float(len(unknown)))
            self._outputs.update(zip(unknown, outputs, strict=True))
        return self._outputs


def framed_outputs(model: TextModel, words: list[str]) -> Float[Tensor, "b o"]:
    """Return the output for each word (leading blank included) in the frame, shape (b, o).

    They lie on the model's device.
    """
    tokenizer = model.tokenizer
    rows = tokenizer.encode_batch([FRAME.format(word=w) for w in words])
    ids = PaddedIds.from_lists([tokenizer.frame(r) for r in rows])
    cache = model.start_cache() if isinstance(model, ClipModel) else None
    with torch.no_grad():
        if cache is None:
            return model.outputs(ids)
        prefix = PaddedIds.from_lists([[*tokenizer.prefix_ids, *tokenizer.encode(BEGINNING)]])
        return cache.outputs(ids, prefix, torch.zeros(len(ids), dtype=torch.long))


def load_or_make(
    model: TextModel,
    table: RetokenizationTable,
    folder: Path,
    *,
    on_progress: OnProgress | None = None,
) -> tuple[Float[Tensor, "w o"], Int[Tensor, " v"]]:
    """Return the vectors of all distinct new words, and each primary token's row (-1 for none).

    Words with equal secondary ids share a row. The file is named by the fingerprint of tokenizers,
    vocabulary and frame, and carries one vector that is computed again at each load: another model
    under the same name is noticed and the table made anew.

    Args:
        model: The secondary.
        table: From the primary's tokens to the secondary's.
        folder: Where tables are kept.
        on_progress: Called with (done, all) while the table is made.

    Returns:
        The model's output for each distinct word, and the row of each primary token, on the CPU.
    """
    words, row_of = distinct_words(table)
    file = folder / f"{fingerprint(model, table)}.safetensors"
    # A table without words is as wide as any: the width comes from a word of its own.
    probe = framed_outputs(model, words[:1] or [" it"])[: len(words)].cpu()

    def make() -> Tensor:
        parts = [probe[:0]]
        for start in range(0, len(words), _CHUNK):
            parts.append(framed_outputs(model, words[start : start + _CHUNK]).cpu())
            if on_progress is not None:
                on_progress(min(start + _CHUNK, len(words)), len(words))
        return torch.cat(parts)

    return kept_vectors.read_or_make(file, len(words), probe, make), row_of


def distinct_words(table: RetokenizationTable) -> tuple[list[str], Int[Tensor, " v"]]:
    """Return the new words that the secondary tells apart, and each primary token's row (or -1).

    Args:
        table: From the primary's tokens to the secondary's.

    Returns:
        Texts, leading blank included, and one row per token.
    """
    pieces = table.pieces
    # Of ASCII words, whatever a search proposes: the table on disk serves every setting.
    tokens = torch.nonzero((pieces.lengths > 0) & table.starts_word).flatten()
    keyed = torch.cat([pieces.lengths[tokens, None], pieces.ids[tokens]], dim=1)
    distinct, inverse = torch.unique(keyed, dim=0, return_inverse=True)
    row_of = torch.full((len(pieces),), -1, dtype=torch.long)
    row_of[tokens] = inverse
    # The lowest token of each row says how the word is written.
    first = torch.full((len(distinct),), len(pieces), dtype=torch.long)
    first.scatter_reduce_(0, inverse, tokens, reduce="amin")
    return [table.primary.token_texts[t] for t in first.tolist()], row_of


def fingerprint(model: TextModel, table: RetokenizationTable) -> str:
    """Return a hash of everything that a table depends on, other than the body of the model."""
    # The empty last fact keeps the names of tables that are on disk already.
    return kept_vectors.fingerprint(
        model, FRAME, table.primary.fingerprint, table.secondary.fingerprint, ""
    )
