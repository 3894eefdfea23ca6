"""The word table, starting from where the text stands: its own output, moved by each word.

What `AnchoredTable` does with a table that costs minutes to make, done with the word table, which
is there already: the secondary reads the text as it is once, and a new word moves that output by
its row less the mean row. Continuations are few, so that they are read: "This is about
skateboards." less "This is about skate." is what " boards" does to a text that ends in "skate".
The default of captions: in a search it finds with 16 exact evaluations what the word table finds
with 64 (benchmarks/results/search-budget.md). Read next: `fuseprompt.transfer.anchored_table`.
"""

from dataclasses import dataclass, field
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.text.retokenize import RetokenizationTable, last_word
from fuseprompt.transfer.anchored_table import (
    AnchoredScorer,
    is_linear,
    mean_row,
    moved_losses,
)
from fuseprompt.transfer.base import Slots, TokenScorer, continued_words
from fuseprompt.transfer.frame_table import shrinkage
from fuseprompt.transfer.word_table import BEGINNING, FRAME, FramedWords, WordTable

#: The word table's frame with a word in it, as long as that of every word.
_FRAMED: Final = FRAME.format(word=" it")

#: Share of a word's difference that it makes in a text as long as the frame; it falls with the root
#: of the length. Measured in 36 contexts beside the benchmark's (docs/decisions.md).
_SHARE_NEW: Final = 0.75
_SHARE_CONTINUED: Final = 0.6


@final
@dataclass(frozen=True)
class AnchoredWords:
    """Transfer by differences between words, added to each text's own output.

    Attributes:
        words: The word table.
    """

    words: WordTable = field(default_factory=WordTable)

    @property
    def name(self) -> str:
        """Name in results."""
        return "anchored-words"

    def bind(
        self, primary: HasVocabulary, table: RetokenizationTable, loss: EmbedLoss
    ) -> TokenScorer:
        """Join the transfer to a primary and a term; makes the word table if need be."""
        vectors, row_of = self.words.vectors(table, loss)
        vectors = vectors.float()
        mean = mean_row(vectors, row_of)
        linear = is_linear(loss, vectors.shape[1])
        scorer = AnchoredScorer(
            loss, (BEGINNING,), vectors, row_of, mean, mean, linear, share_new=_SHARE_NEW
        )
        return _AnchoredWordsScorer(scorer, table, FramedWords(loss.model))


@final
@dataclass(frozen=True, eq=False)
class _AnchoredWordsScorer:
    """Predicts losses from each text's output, the word table, and continued words in its frame.

    Attributes:
        anchored: Scores new words, and knows the texts' outputs.
        table: From the primary's tokens to the term's.
        framed: Reads continued words.
    """

    anchored: AnchoredScorer
    table: RetokenizationTable
    framed: FramedWords

    @property
    def cost(self) -> float:
        """One forward pass for each text, and for each last word with and without a token."""
        return self.anchored.cost + self.framed.meter.total

    def new_words(self, slots: Slots, words: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        return self.anchored.new_words(slots, words)

    def continuations(self, slots: Slots, tokens: Int[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        anchors = self.anchored.anchors(slots)
        if not tokens.numel():
            return torch.zeros(tokens.shape, device=anchors.device)
        lasts = [last_word(left).strip() for left in slots.left]
        words = [word.strip() for word in continued_words(self.table, slots, tokens)]
        outputs = self.framed.read([word for word in [*lasts, *words] if word])
        # A text without a last word is moved as by a new word.
        mean = self.anchored.new
        before = torch.stack([outputs[last].float() if last else mean for last in lasts])
        after = torch.stack([outputs[word].float() if word else mean for word in words])
        share = _SHARE_CONTINUED * shrinkage((_FRAMED,), slots, added=0).to(anchors.device)
        moves = after.view(*tokens.shape, -1) - before[:, None]
        return moved_losses(
            self.anchored.loss, anchors, slots.problems, share[:, None, None] * moves
        )
