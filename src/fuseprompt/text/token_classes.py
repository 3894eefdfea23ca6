"""Tokens by what they do to a text, and which of them are read back as themselves.

The result of a search is text, so only tokens that a tokenizer reads again from it count.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable, are_solid, concatenate
from fuseprompt.text.tokenizer import Tokenizer, is_word_initial, is_written

#: Texts that finish a sentence.
SENTENCE_ENDS: Final = (".", "!", "?")

#: The word after which tokens that begin a word are tried.
_WORD: Final = "a"

#: Marks of a token after a word. One that changes the word itself says nothing of other words.
_UNKNOWN, _READ_BACK, _READ_OTHERWISE, _CHANGES_WORD = range(4)


@final
@dataclass(frozen=True)
class TokenMasks:
    """The ids of word-initial and the mask of word-internal tokens, on one device."""

    initial_ids: Int[Tensor, " w"]
    word_internal: Bool[Tensor, " v"]


@final
@dataclass(frozen=True, eq=False)
class TokenClasses:
    """The primary's tokens by what they do to a text, sorted once.

    `vocab_size` counts the rows of the model's matrix; rows without a token are never proposed.
    """

    tokenizer: Tokenizer
    vocab_size: int
    ascii_only: bool = True
    _masks: dict[torch.device, TokenMasks] = field(default_factory=dict, repr=False)

    def on(self, device: torch.device) -> TokenMasks:
        """Return the classes on a device, moved there once."""
        if device not in self._masks:
            found = (self.initial_ids, self.word_internal)
            self._masks[device] = TokenMasks(*(tensor.to(device) for tensor in found))
        return self._masks[device]

    @cached_property
    def round_trip(self) -> "RoundTrip":
        """Which tokens survive decode -> encode."""
        return RoundTrip(self.tokenizer)

    @cached_property
    def _texts(self) -> list[str]:
        texts = list(self.tokenizer.token_texts)[: self.vocab_size]
        special = re.compile("|".join(map(re.escape, self.tokenizer.special_texts)) or r"(?!)")
        texts = ["" if special.search(t) else t for t in texts]
        return texts + [""] * (self.vocab_size - len(texts))

    @cached_property
    def word_initial(self) -> Bool[Tensor, " v"]:
        """Tokens that begin a word: one blank, then printable text."""
        return torch.tensor([is_word_initial(t, ascii_only=self.ascii_only) for t in self._texts])

    @cached_property
    def initial_ids(self) -> Int[Tensor, " w"]:
        """Ids of the tokens that begin a word."""
        return torch.nonzero(self.word_initial).flatten()

    @cached_property
    def word_internal(self) -> Bool[Tensor, " v"]:
        """Tokens that lengthen the last word: printable, no blank, no sentence end."""
        return torch.tensor(
            [
                t.split() == [t] and is_written(t, ascii_only=self.ascii_only) and not _ends(t)
                for t in self._texts
            ]
        )

    @cached_property
    def first_words(self) -> Int[Tensor, "2 f"]:
        """Tokens that may begin a text, and the word-initial token of the same word of each."""
        # Other beginnings ("-", "_", "'s") are cheap after an end-of-text token, and no sentence.
        ids = {self._texts[i]: i for i in self.initial_ids.tolist()}
        pairs = []
        for token, text in enumerate(self._texts):
            if text[:1].isalnum() and not _ends(text):
                alike = ids.get(f" {text}", ids.get(f" {text.lower()}"))
                pairs += [] if alike is None else [(token, alike)]
        return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T.contiguous()

    @cached_property
    def ends(self) -> Int[Tensor, " e"]:
        """Tokens that finish a sentence."""
        return torch.tensor(
            [i for i, t in enumerate(self._texts) if t in SENTENCE_ENDS], dtype=torch.long
        )


def _ends(text: str) -> bool:
    """Return whether a token holds sentence punctuation: only whole ends may finish a text."""
    return any(e in text for e in SENTENCE_ENDS)


@final
@dataclass(frozen=True)
class RoundTrip:
    """The round trip decode -> encode; a word-initial token is tried after one word, once."""

    tokenizer: Tokenizer

    @cached_property
    def table(self) -> RetokenizationTable:
        """From the tokenizer to itself."""
        return RetokenizationTable(self.tokenizer, self.tokenizer)

    @cached_property
    def _known(self) -> Int[Tensor, " v"]:
        """The mark of each token after a word; filled in as tokens are asked for."""
        return torch.full((len(self.tokenizer.token_texts),), _UNKNOWN, dtype=torch.int8)

    def _after_word(self, tokens: Int[Tensor, " c"]) -> Int[Tensor, " c"]:
        """Return the mark of each word-initial token."""
        asked = torch.unique(tokens)
        asked = asked[self._known[asked] == _UNKNOWN]
        texts, prefix = self.tokenizer.token_texts, self.tokenizer.encode(_WORD)
        words = [_WORD + texts[token] for token in asked.tolist()]
        read = zip(asked.tolist(), self.tokenizer.encode_batch(words), strict=True)
        marks = []
        for token, ids in read:
            is_same = _READ_BACK if ids[len(prefix) :] == [token] else _READ_OTHERWISE
            marks.append(is_same if ids[: len(prefix)] == prefix else _CHANGES_WORD)
        self._known[asked] = torch.tensor(marks, dtype=torch.int8)
        return self._known[tokens]

    def survives(
        self,
        texts: Sequence[str],
        token_ids: PaddedIds,
        rows: Int[Tensor, " c"],
        tokens: Int[Tensor, " c"],
    ) -> Bool[Tensor, " c"]:
        """Return whether text + token encodes to the text's ids and that token."""
        by_word = self.table.word_initial[tokens] & are_solid(texts)[rows]
        by_word &= self.table.verdict.word_initial == 1.0
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
        """Compare the ids of the longer texts with the known ids and each token."""
        got, _ = self.table.extend(texts, rows, tokens)
        special = [
            torch.tensor(ids, dtype=torch.long).expand(len(tokens), -1)
            for ids in (self.tokenizer.prefix_ids, self.tokenizer.suffix_ids)
        ]
        before, after = (PaddedIds(f, torch.full((len(f),), f.shape[1])) for f in special)
        one = PaddedIds(tokens[:, None], torch.ones_like(tokens))
        want = concatenate(before, concatenate(token_ids[rows], concatenate(one, after)))
        width = min(got.ids.shape[1], want.ids.shape[1])
        same = (got.ids[:, :width] == want.ids[:, :width]).all(dim=1)
        return same & (got.lengths == want.lengths)
