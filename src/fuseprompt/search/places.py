"""Places in a text where an edit may put a token, and the texts that come of it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.text.tokenizer import Tokenizer

#: Punctuation that closes a word, and stays where it is when the word is edited.
CLOSING: Final = ".,;:!?)\"'"

#: A word with its blank, and the punctuation that closes it.
_WORD: Final = re.compile(rf"\s?(?P<core>\S*?)[{CLOSING}]*(?=\s|$)")

#: Kinds of places: what a token there does.
REPLACE, INSERT, LENGTHEN, RESPELL = range(4)

#: The kinds where a token is the beginning of a word.
WHOLE: Final = (REPLACE, INSERT)

#: The kinds where a token takes the place of others.
REPLACING: Final = (REPLACE, RESPELL)


@final
@dataclass(frozen=True, eq=False)
class Candidates:
    """Edited texts with the losses that are expected of them, unmet demands included."""

    rows: Int[Tensor, " c"]  # the text that each was made of
    texts: tuple[str, ...]
    fluency: Float[Tensor, " c"]
    predicted: Float[Tensor, " c"]

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.texts)

    @property
    def pairs(self) -> list[tuple[int, str]]:
        """The row and the text of each candidate."""
        return list(zip(self.rows.tolist(), self.texts, strict=True))

    def __getitem__(self, index: Sequence[int]) -> "Candidates":
        """Return the chosen candidates."""
        at = torch.tensor(list(index), dtype=torch.long)
        texts = tuple(self.texts[i] for i in index)
        return Candidates(self.rows[at], texts, self.fluency[at], self.predicted[at])

    @staticmethod
    def join(*parts: "Candidates") -> "Candidates":
        """Return several lists of candidates as one without repetitions."""
        together = Candidates(
            torch.cat([p.rows for p in parts]),
            tuple(text for p in parts for text in p.texts),
            torch.cat([p.fluency for p in parts]),
            torch.cat([p.predicted for p in parts]),
        )
        first = {pair: i for i, pair in reversed(list(enumerate(together.pairs)))}
        return together[sorted(first.values())]


@final
@dataclass(frozen=True)
class Place:
    """Where a token may go in a text: between `left` and `right`, after `index` of its tokens.

    `removed` tokens of the text are between the two.
    """

    row: int
    kind: int
    left: str
    right: str
    index: int
    removed: int


def find_places(tokenizer: Tokenizer, text: str, prefix: str, row: int) -> Iterator[Place]:
    """Yield the places of a text after its prefix, word by word; `row` is kept in each."""
    _, offsets = tokenizer.encode_with_offsets(text)
    ends = [end for _, end in offsets]

    def place(kind: int, start: int, stop: int) -> Place | None:
        # A token that reaches over a border leaves no place for another there.
        if any(begin < cut < end for begin, end in offsets for cut in (start, stop)):
            return None
        index = sum(end <= start for end in ends)
        removed = sum(end <= stop for end in ends) - index
        return Place(row, kind, text[:start], text[stop:], index, removed)

    found = []
    words = (m for m in _WORD.finditer(text, len(prefix)) if m["core"])
    for start, stop in ((m.start(), m.end("core")) for m in words):
        found.append(place(REPLACE, start, stop))
        if start > 0 and text[start].isspace():  # Else the rest of a word would be glued to it.
            found.append(place(INSERT, start, start))
        found.append(place(LENGTHEN, stop, stop))
        first = start + int(text[start].isspace())
        inside = [begin for begin, end in offsets if first < begin and end == stop]
        if inside:
            found.append(place(RESPELL, inside[0], stop))
    end = len(text.rstrip(CLOSING))
    if end >= max(len(prefix), 1):
        found.append(place(INSERT, end, end))
    yield from (one for one in found if one is not None)
