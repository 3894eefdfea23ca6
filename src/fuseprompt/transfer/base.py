"""How a term's information reaches the primary's tokens, before any candidate is evaluated.

A `Transfer` is a setting; `bind` joins it to a primary and a term's `EmbedLoss` and gives a
`TokenScorer`, which predicts the loss of every candidate token in a *slot* (the place that an edit
changes). Predictions need only rank well; exact losses are computed later. A user adds a transfer
in one file. Read next: `fuseprompt.transfer.retokenized`.
"""

from dataclasses import dataclass
from typing import Final, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import AlignmentError
from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable, last_word
from fuseprompt.text.tokenizer import Tokenizer

#: Stands in a slot while the text around it is tokenised; one piece in any vocabulary.
_STAND_IN = "it"

#: Forward equivalents of a forward and a backward pass of one text.
GRADIENT_COST: Final = 3.0


@final
@dataclass(frozen=True)
class Slots:
    """Places in texts where a token may go: a candidate's text is left + token + right.

    Attributes:
        left: Text before the slot.
        right: Text after it, "" when a token is appended. It does not go on with the word: a slot
            inside a word is the slot of that whole word.
        problems: Problem of each slot, shape (n,).
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    problems: Int[Tensor, " n"]

    def __post_init__(self) -> None:
        """Refuse slots in the middle of a word, whose candidates would be read with its rest.

        Raises:
            AlignmentError: If a text after a slot begins with a letter or digit.
        """
        for left, right in zip(self.left, self.right, strict=True):
            if right[:1].isalnum():
                raise AlignmentError(
                    f"The text after a slot goes on with its word: {left!r} | {right!r}. Take the "
                    "whole word out, so that the text after it begins with a blank or punctuation."
                )

    @classmethod
    def append(cls, texts: tuple[str, ...], problems: Int[Tensor, " n"]) -> "Slots":
        """Slots at the end of texts."""
        return cls(texts, ("",) * len(texts), problems)

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self.left)


@final
@dataclass
class Meter:
    """Adds up what a scorer spends; the one thing in a scorer that changes besides its memory.

    Attributes:
        total: Forward equivalents so far.
    """

    total: float = 0.0

    def add(self, cost: float) -> None:
        """Count forward equivalents."""
        self.total += cost


@runtime_checkable
class TokenScorer(Protocol):
    """Predicts the loss of candidate tokens, and counts what that costs.

    Slots and tokens lie on the CPU, predictions where the scorer has its numbers: a search leaves
    them on an accelerator.
    """

    @property
    def cost(self) -> float:
        """Forward equivalents of the secondary spent since `bind`, over all slots.

        A text through the secondary is 1; loss and gradient at one linearisation point in one slot
        are `GRADIENT_COST`; table look-ups and matrix products are 0, and so is what is kept on
        disk for all problems (a fitted map, a word table). Exact losses of candidates are asked for
        elsewhere and not in it. The difference over a call is the cost of that call.
        """
        ...

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        """Return the predicted loss of each new word (one blank, then text) in each slot."""
        ...

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """Return the predicted loss of tokens that lengthen the last word left of each slot."""
        ...


@runtime_checkable
class Transfer(Protocol):
    """A way for a term's information to reach the primary's tokens."""

    @property
    def name(self) -> str:
        """Name in results and on the command line."""
        ...

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term.

        Args:
            primary: The model whose tokens are chosen.
            table: From the primary's tokens to the term's.
            loss: The term with its targets.
        """
        ...


@final
@dataclass(frozen=True)
class SlotIds:
    """The secondary's view of slots, with one stand-in token in each.

    Attributes:
        token_ids: Framed ids, the slot filled with a stand-in.
        positions: Where the stand-in is, shape (n,).
    """

    token_ids: PaddedIds
    positions: Int[Tensor, " n"]


def tokenize_new_word_slots(tokenizer: Tokenizer, slots: Slots) -> SlotIds:
    """Return the ids of each text with a stand-in word where the new word would be."""
    lefts = [left if not left or left[-1].isspace() else left + " " for left in slots.left]
    return _with_stand_in(tokenizer, lefts, slots.right)


def tokenize_last_word_slots(tokenizer: Tokenizer, slots: Slots) -> SlotIds:
    """Return the ids of each text with a stand-in for the last word left of the slot."""
    lefts = []
    for left in slots.left:
        word = last_word(left)
        stem = left[: len(left) - len(word)]
        lefts.append(stem + " " if word[:1].isspace() else stem)
    return _with_stand_in(tokenizer, lefts, slots.right)


def _with_stand_in(tokenizer: Tokenizer, lefts: list[str], rights: tuple[str, ...]) -> SlotIds:
    rows, positions = [], []
    for left, right in zip(lefts, rights, strict=True):
        ids, offsets = tokenizer.encode_with_offsets(left + _STAND_IN + right)
        at = next(i for i, (_, end) in enumerate(offsets) if end > len(left))
        rows.append(tokenizer.frame(ids))
        positions.append(len(tokenizer.prefix_ids) + at)
    return SlotIds(PaddedIds.from_lists(rows), torch.tensor(positions))


def widen(slots: SlotIds, width: int) -> SlotIds:
    """Return slots with `width` stand-ins side by side in place of one.

    Args:
        slots: Slots with one stand-in each.
        width: Positions of the wider slot.

    Returns:
        The wider slots; positions are where they begin.
    """
    if width == 1:
        return slots
    rows = [
        row[:at] + [row[at]] * width + row[at + 1 :]
        for row, at in zip(slots.token_ids.to_lists(), slots.positions.tolist(), strict=True)
    ]
    return SlotIds(PaddedIds.from_lists(rows), slots.positions)


def continued_words(
    table: RetokenizationTable, slots: Slots, tokens: Int[Tensor, "n c"]
) -> list[str]:
    """Return the last word left of each slot with each of its tokens added, slot by slot."""
    texts = table.primary.token_texts
    lasts = [last_word(left) for left in slots.left]
    return [last + texts[t] for last, row in zip(lasts, tokens.tolist(), strict=True) for t in row]


def continued_pieces(
    table: RetokenizationTable, slots: Slots, tokens: Int[Tensor, "n c"]
) -> PaddedIds:
    """Return the secondary's ids of `continued_words`."""
    words = continued_words(table, slots, tokens)
    return PaddedIds.from_lists([table.encode_word(word) for word in words])


def new_word_embeds(table: RetokenizationTable, loss: EmbedLoss) -> Float[Tensor, "v d"]:
    """Return the mean secondary embedding of every primary token read as a new word.

    Made once for a table and a model, however many problems are bound.
    """
    return table.memo.recall(
        "mean pieces", (loss.model,), lambda: mean_pieces(loss.vocabulary, table.pieces)
    )


def mean_pieces(vocabulary: Float[Tensor, "v d"], pieces: PaddedIds) -> Float[Tensor, "b d"]:
    """Return the mean embedding of each row of ids, shape (b, d); zero for an empty row."""
    result = torch.zeros(len(pieces), vocabulary.shape[1], device=vocabulary.device)
    for m in torch.unique(pieces.lengths).tolist():
        if m:
            rows = torch.nonzero(pieces.lengths == m).flatten()
            result[rows] = vocabulary[pieces.ids[rows, :m]].float().mean(dim=1)
    return result
