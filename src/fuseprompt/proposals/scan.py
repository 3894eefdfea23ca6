"""The scan, a proposal for units of a layer: what each common word does there among others.

A unit that answers to few words is flat for everything that a language model thinks of first. The
scan reads common words in a few rows, once for a layer, and so knows which of them to try.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import EmbedLoss, HasVocabulary, TextModel
from fuseprompt.objective.activation import HiddenStates
from fuseprompt.proposals.additive import own_outputs
from fuseprompt.proposals.base import Positions
from fuseprompt.text.retokenize import RetokenizationTable, encode_whole

#: Most words in a row: they are read among others, as in a text.
_ROW: Final = 48

#: Tokens of a word, at most as a mean over a row.
_WORD_TOKENS: Final = 4

#: Share of what a word does in a row that it is expected to do in a text.
_SHARE: Final = 0.7


@final
@dataclass(frozen=True)
class Scan:
    """Proposes by each common word's activations in rows of words; only for `HiddenStates`.

    Attributes:
        num_words: Words that are read: the first of the vocabulary, which are the common ones.
    """

    name: ClassVar[str] = "scan"
    num_words: int = 3072

    def init(
        self, primary: HasVocabulary, secondary: TextModel, table: RetokenizationTable
    ) -> "_ScanState":
        """Return what is read when a term first asks for it."""
        return _ScanState(self, secondary, table)


@final
@dataclass(frozen=True, eq=False)
class _ScanState:
    setting: Scan
    secondary: TextModel
    table: RetokenizationTable

    @cached_property
    def found(self) -> tuple[Int[Tensor, " v"], Float[Tensor, "w o"]]:
        """The row of each primary token (-1: it was not read), and the activations of rows."""
        assert isinstance(self.secondary, HiddenStates), "other models have no activations"
        texts = self.table.primary.token_texts
        tokens = torch.nonzero(self.table.word_initial).flatten()[: self.setting.num_words]
        shuffled = tokens[torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))]
        row_of = torch.full((len(texts),), -1)
        rows: list[Tensor] = []
        size = max(1, min(_ROW, self.secondary.max_length // _WORD_TOKENS))
        for start in range(0, len(shuffled), size):
            line = ""
            ends = []
            for token in shuffled[start : start + size].tolist():
                line += texts[token] if line else texts[token].lstrip()
                ends.append((token, len(line)))
            offsets, activations = self.secondary.trace(line)
            begun = 0
            for token, end in ends:
                own = [i for i, (_, stop) in enumerate(offsets) if begun < stop <= end]
                begun = end
                if own:
                    row_of[token] = len(rows)
                    rows.append(self.secondary.pool(activations[None, own])[0])
        width = self.secondary.outputs(encode_whole(self.secondary.tokenizer, ["a"])).shape[1]
        return row_of, torch.stack(rows) if rows else torch.zeros(0, width)

    def bind(self, loss: EmbedLoss) -> "_ScanScorer":
        return _ScanScorer(loss, self)


@final
@dataclass(eq=False)
class _ScanScorer:
    loss: EmbedLoss
    state: _ScanState
    cost: float = 0.0
    kept: dict[str, Tensor] = field(default_factory=dict)

    def word_initial(self, positions: Positions, tokens: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        own = self._own(positions)
        row_of, vectors = self.state.found
        rows = row_of[tokens]
        known = torch.nonzero(rows >= 0).flatten()
        words = vectors[rows[known]].to(own.device)
        scores = self.loss.compare(own, positions.problems)[:, None].repeat(1, len(tokens))
        pools_max = getattr(self.loss.model, "pools_max", False)
        for i, (output, problem) in enumerate(zip(own, positions.problems, strict=True)):
            moves = words - output
            outputs = output + _SHARE * (moves.clamp_min(0.0) if pools_max else moves)
            scores[i, known] = self.loss.compare(outputs, problem.expand(len(known)))
        return scores

    def word_internal(
        self, positions: Positions, tokens: Int[Tensor, "n c"]
    ) -> Float[Tensor, "n c"]:
        own = self._own(positions)
        return self.loss.compare(own, positions.problems)[:, None].expand(tokens.shape)

    def _own(self, positions: Positions) -> Float[Tensor, "n o"]:
        outputs, num_read = own_outputs(self.loss, positions, self.kept)
        self.cost += num_read
        return outputs
