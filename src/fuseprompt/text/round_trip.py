"""Which tokens, appended to a text, are read back as themselves: decode, then encode.

The text is the result of a search, so a token counts only if its tokenizer cuts the longer text
into the same ids and that token. Whole words are answered from a table made once for a vocabulary,
the rest by the retokenisation table of the tokenizer to itself, which encodes last words only and
remembers them. What that table's check does not trust is encoded as a whole text. Read next:
`fuseprompt.search.candidates`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable, are_solid, concatenate
from fuseprompt.text.tokenizer import Tokenizer


@final
@dataclass(frozen=True)
class RoundTrip:
    """The round trip decode -> encode of one tokenizer.

    Attributes:
        tokenizer: The tokenizer.
    """

    tokenizer: Tokenizer

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "RoundTrip":
        """Return the round trip of a tokenizer, made once for it."""
        return tokenizer.memo.recall("round trip", (), lambda: cls(tokenizer))

    @cached_property
    def table(self) -> RetokenizationTable:
        """From the tokenizer to itself."""
        return RetokenizationTable(self.tokenizer, self.tokenizer)

    @cached_property
    def _one_token_words(self) -> Bool[Tensor, " v"]:
        """Tokens that, read as a new word, are one token: themselves."""
        pieces = self.table.pieces
        own = torch.arange(len(pieces))
        return (pieces.lengths == 1) & (pieces.ids[:, :1] == own[:, None]).all(dim=1)

    def survives(
        self,
        texts: Sequence[str],
        token_ids: PaddedIds,
        rows: Int[Tensor, " c"],
        tokens: Int[Tensor, " c"],
    ) -> Bool[Tensor, " c"]:
        """Return which appended tokens are read back after the ids of their text.

        Args:
            texts: The texts to append to, each of which survives itself.
            token_ids: Their ids, without special ones.
            rows: Index into `texts` for each candidate, shape (c,).
            tokens: Token to append, shape (c,).

        Returns:
            Whether text + token encodes to the ids of the text and that token, shape (c,).
        """
        table = self.table
        by_word = table.starts_word[tokens] & are_solid(texts)[rows]
        by_word &= (table.pieces.lengths[tokens] > 0) & (table.verdict.new_words == 1.0)
        result = self._one_token_words[tokens]
        others = torch.nonzero(~by_word).flatten()
        if len(others):
            result[others] = self._survives_extended(texts, token_ids, rows[others], tokens[others])
        return result

    def _survives_extended(
        self,
        texts: Sequence[str],
        token_ids: PaddedIds,
        rows: Int[Tensor, " c"],
        tokens: Int[Tensor, " c"],
    ) -> Bool[Tensor, " c"]:
        """Compare the ids of the longer texts with the ids as they are carried."""
        got, _ = self.table.extend(texts, rows, tokens)
        frame = [
            torch.tensor(ids, dtype=torch.long).expand(len(tokens), -1)
            for ids in (self.tokenizer.prefix_ids, self.tokenizer.suffix_ids)
        ]
        before, after = (PaddedIds(f, torch.full((len(f),), f.shape[1])) for f in frame)
        one = PaddedIds(tokens[:, None], torch.ones_like(tokens))
        want = concatenate(before, concatenate(token_ids[rows], concatenate(one, after)))
        width = min(got.ids.shape[1], want.ids.shape[1])
        same = (got.ids[:, :width] == want.ids[:, :width]).all(dim=1)
        return same & (got.lengths == want.lengths)
