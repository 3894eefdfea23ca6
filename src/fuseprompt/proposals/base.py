"""The three protocols of a proposal, and positions, where it predicts.

Predictions need only rank well: exact losses are computed later.
"""

from dataclasses import dataclass
from typing import Final, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import AlignmentError
from fuseprompt.models.base import EmbedLoss, HasVocabulary, TextModel
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable, last_word
from fuseprompt.text.tokenizer import Tokenizer

#: Stands at a position while the text around it is tokenised; one piece in any vocabulary.
_STAND_IN: Final = "it"


@final
@dataclass(frozen=True)
class Positions:
    """Places in texts where a token may go: a candidate's text is left + token + right."""

    left: tuple[str, ...]
    right: tuple[str, ...]  # "" when a token is appended; never the rest of a word
    problems: Int[Tensor, " n"]

    def __post_init__(self) -> None:
        """Refuse positions inside a word, whose candidates would be read with the word's rest."""
        for left, right in zip(self.left, self.right, strict=True):
            if right[:1].isalnum():
                raise AlignmentError(
                    f"The text after a position goes on with its word: {left!r} | {right!r}. Take "
                    "the whole word out, so that the text after it begins with a blank or "
                    "punctuation."
                )

    @classmethod
    def append(cls, texts: tuple[str, ...], problems: Int[Tensor, " n"]) -> "Positions":
        """Positions at the end of texts."""
        return cls(texts, ("",) * len(texts), problems)

    def __len__(self) -> int:
        """Return the number of positions."""
        return len(self.left)

    def __getitem__(self, index: list[int]) -> "Positions":
        """Return the chosen positions."""
        left, right = (tuple(texts[i] for i in index) for texts in (self.left, self.right))
        return Positions(left, right, self.problems[index])

    @property
    def texts(self) -> list[str]:
        """Each text without a token at its position."""
        return [left + right for left, right in zip(self.left, self.right, strict=True)]

    def count_words(self) -> list[int]:
        """Return the white-space words of each text, without a token at its position."""
        pairs = zip(self.left, self.right, strict=True)
        return [len(left.split()) + len(right.split()) for left, right in pairs]


@runtime_checkable
class Scorer(Protocol):
    """Predicts losses of tokens, which lie on the CPU, and counts what that costs."""

    @property
    def cost(self) -> float:
        """Forward equivalents of the secondary spent since `bind`, over all positions."""
        # A text is 1, with its gradient 3; look-ups, matrix products and exact losses are 0.

    def word_initial(self, positions: Positions, tokens: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        """Return the predicted loss of each word-initial token at each position."""

    def word_internal(
        self, positions: Positions, tokens: Int[Tensor, "n c"]
    ) -> Float[Tensor, "n c"]:
        """Return the predicted loss of tokens that lengthen the last word left of each position."""


@runtime_checkable
class ProposalState(Protocol):
    """What lasts for a pair of models; made once, whatever problems follow."""

    def bind(self, loss: EmbedLoss) -> Scorer:
        """Return a scorer for a term with the targets of a group of problems."""


@runtime_checkable
class Proposal(Protocol):
    """The setting of a way to name candidates."""

    @property
    def name(self) -> str:
        """Name in results and on the command line."""

    def init(
        self, primary: HasVocabulary, secondary: TextModel, table: RetokenizationTable
    ) -> ProposalState:
        """Return what lasts for two models; `table` leads from the primary's tokens on."""


@final
@dataclass(frozen=True)
class StandIns:
    """The secondary's view of positions: ids with special tokens, a stand-in token in each text."""

    token_ids: PaddedIds
    places: Int[Tensor, " n"]  # index of the stand-in


def put_stand_ins(
    tokenizer: Tokenizer, positions: Positions, *, for_last_words: bool = False
) -> StandIns:
    """Return the ids of texts with a stand-in at each position, or for the last word before it."""
    rows, places = [], []
    for left, right in zip(positions.left, positions.right, strict=True):
        word = last_word(left) if for_last_words else ""
        begun = left[: len(left) - len(word)]
        needs_blank = word[:1].isspace() if for_last_words else left and not left[-1].isspace()
        begun += " " if needs_blank else ""
        ids, offsets = tokenizer.encode_with_offsets(begun + _STAND_IN + right)
        at = next(i for i, (_, end) in enumerate(offsets) if end > len(begun))
        rows.append(tokenizer.add_special_tokens(ids))
        places.append(len(tokenizer.prefix_ids) + at)
    return StandIns(PaddedIds.from_lists(rows), torch.tensor(places))


def lengthened_words(
    table: RetokenizationTable, positions: Positions, tokens: Int[Tensor, "n c"]
) -> list[str]:
    """Return the last word left of each position with each of its tokens added, row by row."""
    texts = table.primary.token_texts
    lasts = [last_word(left) for left in positions.left]
    return [last + texts[t] for last, row in zip(lasts, tokens.tolist(), strict=True) for t in row]
