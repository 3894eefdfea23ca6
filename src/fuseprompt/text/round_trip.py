"""Which tokens, appended to a text, are read back as themselves: decode, then encode.

The text is the result of a search, so a token counts only if its tokenizer cuts the longer text
into the same ids and that token. A token that begins a word is tried after one word and remembered,
the rest is answered by the retokenisation table of the tokenizer to itself, which encodes last
words only and remembers them. What that table's check does not trust is encoded as a whole text.
Read next: `fuseprompt.search.candidates`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable, are_solid, concatenate
from fuseprompt.text.tokenizer import Tokenizer

#: The word after which tokens that begin a word are tried.
_WORD: Final = "a"

#: Marks of a token after a word. One that changes the word itself says nothing of other words.
_UNKNOWN, _READ_BACK, _READ_OTHERWISE, _CHANGES_WORD = range(4)


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
    def _known(self) -> Int[Tensor, " v"]:
        """The mark of each token after a word; filled in as tokens are asked for."""
        return torch.full((len(self.tokenizer.token_texts),), _UNKNOWN, dtype=torch.int8)

    def _after_word(self, tokens: Int[Tensor, " c"]) -> Int[Tensor, " c"]:
        """Return the mark of each token, all tokens being ones that begin a word."""
        asked = torch.unique(tokens)
        asked = asked[self._known[asked] == _UNKNOWN]
        texts, stem = self.tokenizer.token_texts, self.tokenizer.encode(_WORD)
        words = [_WORD + texts[token] for token in asked.tolist()]
        read = zip(asked.tolist(), self.tokenizer.encode_batch(words), strict=True)
        marks = [_mark(token, ids, stem) for token, ids in read]
        self._known[asked] = torch.tensor(marks, dtype=torch.int8)
        return self._known[tokens]

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
        by_word = self.table.starts_word[tokens] & are_solid(texts)[rows]
        by_word &= self.table.verdict.new_words == 1.0
        marks = torch.full(tokens.shape, _CHANGES_WORD, dtype=torch.int8)
        marks[by_word] = self._after_word(tokens[by_word])
        result = marks == _READ_BACK
        others = torch.nonzero(marks == _CHANGES_WORD).flatten()
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


def _mark(token: int, ids: list[int], stem: list[int]) -> int:
    """Return the mark of a token from the ids of a word with it, and of that word alone."""
    if ids[: len(stem)] != stem:
        return _CHANGES_WORD
    return _READ_BACK if ids[len(stem) :] == [token] else _READ_OTHERWISE
