"""Words that two tokenizers share: the split and merge of section 3.2, by character offsets.

Tokenizers split a word as they like, but respect the blanks between words. `align` finds the finest
sequence of *parts* such that each holds whole words of the text and whole tokens of both models.
Usually a part is a word; a token that spans several words makes one part of them. `split` and
`merge` carry embeddings or gradients to parts and back and lose nothing. Nothing here compares
token strings, so tokenizers that lower-case are no special case. At the foot stand the words that
maps are fitted to, and all that the method needs of a model. Read next: `fuseprompt.fuse.fit`.
"""

import gzip
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from importlib import resources
from itertools import accumulate, pairwise
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from fuseprompt.errors import AlignmentError

#: Where something begins and ends, the end exclusive.
Span = tuple[int, int]

_WORD = re.compile(r"\s*\S+")


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A run of characters, and the tokens of both models for it: none if a model drops them."""

    chars: Span
    primary: Span
    secondary: Span

    @property
    def counts(self) -> tuple[int, int]:
        """Token counts (k, l) in the primary and in the secondary."""
        return self.primary[1] - self.primary[0], self.secondary[1] - self.secondary[0]


@final
@dataclass(frozen=True)
class Alignment:
    """Two tokenizations of a text: the characters of each token, and the parts that hold them.

    Every token of both is in exactly one part, in order.
    """

    text: str
    primary_spans: tuple[Span, ...]
    secondary_spans: tuple[Span, ...]
    parts: tuple[Part, ...]

    @classmethod
    def of_counts(cls, counts: Sequence[tuple[int, int]]) -> "Alignment":
        """Align words of which only the token counts (k, l) are known; none can be cut."""
        ours, theirs = ([0, *accumulate(pair[side] for pair in counts)] for side in (0, 1))
        spans = zip(pairwise(ours), pairwise(theirs), strict=True)
        parts = tuple(Part((0, 0), primary, secondary) for primary, secondary in spans)
        return cls("", ((0, 0),) * ours[-1], ((0, 0),) * theirs[-1], parts)

    def cut(self, fits: Callable[[int, int], bool]) -> "Alignment":
        """Cut parts whose token counts (k, l) do not fit, where both tokenizers can be cut."""
        parts: list[Part] = []
        for part in self.parts:
            if fits(*part.counts):
                parts.append(part)
                continue
            ours = _Boundaries(self.text, self.primary_spans[slice(*part.primary)])
            theirs = _Boundaries(self.text, self.secondary_spans[slice(*part.secondary)])
            ends = sorted({*ours.ends, *theirs.ends})
            first, *others = _cut_at(ends, ours, theirs, part, keep_both=True)
            parts.append(first)
            for piece in others:
                last = parts[-1]
                pairs = zip(astuple(last), astuple(piece), strict=True)
                joined = Part(*((left[0], right[1]) for left, right in pairs))
                if fits(*joined.counts):
                    parts[-1] = joined
                else:
                    parts.append(piece)
        return replace(self, parts=tuple(parts))


def align(text: str, primary_spans: Sequence[Span], secondary_spans: Sequence[Span]) -> Alignment:
    """Align two tokenizations of a text, given the characters of each token (section 3.2)."""
    for name, spans in (("primary", primary_spans), ("secondary", secondary_spans)):
        for start, end in spans:
            if not 0 <= start <= end <= len(text):
                raise AlignmentError(
                    f"align got the {name} span ({start}, {end}) for a text of {len(text)} "
                    "characters. Pass the tokenised text, and offsets in characters, not bytes."
                )
    parts: list[Part] = []
    if text or primary_spans or secondary_spans:
        whole = Part((0, len(text)), (0, len(primary_spans)), (0, len(secondary_spans)))
        ours, theirs = _Boundaries(text, primary_spans), _Boundaries(text, secondary_spans)
        starts = [start for start, _ in word_spans(text)[1:]]
        parts = _cut_at(starts, ours, theirs, whole, keep_both=False)
    return Alignment(text, tuple(primary_spans), tuple(secondary_spans), tuple(parts))


def split(rows: Shaped[Tensor, "s d"], counts: Sequence[int]) -> list[Shaped[Tensor, "1 d _"]]:
    """Cut rows, one per token, into a view (1, d, l) per part, whose tokens are along the tubes."""
    if sum(counts) != rows.shape[0]:
        raise AlignmentError(
            f"split got counts that add up to {sum(counts)} for {rows.shape[0]} rows. Take counts "
            "from the text's alignment, and leave out rows of special tokens and padding."
        )
    return [part.T.unsqueeze(0) for part in torch.split(rows, list(counts))]


def merge(parts: Sequence[Shaped[Tensor, "1 d _"]]) -> Shaped[Tensor, "s d"]:
    """Put the rows of parts together again, one per token: the exact inverse of `split`."""
    if not parts:
        raise AlignmentError(
            "merge got no parts, expected at least one. The empty text has no tensor to merge."
        )
    return torch.cat([part.squeeze(0).T for part in parts])


def word_spans(text: str) -> list[Span]:
    """Cut a text into words, each with the white space before it, the last with any after it."""
    starts = [match.start() for match in _WORD.finditer(text)] or [0]
    return list(pairwise([*starts, len(text)])) if text else []


class _Boundaries:
    """Where one tokenization can be cut: after i tokens at character c if none crosses c.

    White space at the ends of a token does not count, unless the token is nothing else.
    """

    def __init__(self, text: str, spans: Sequence[Span]) -> None:
        trimmed = []
        for start, end in spans:
            piece = text[start:end]
            left = start + len(piece) - len(piece.lstrip())
            trimmed.append((left, left + len(piece.strip())) if piece.strip() else (start, end))
        self.ends = [end for _, end in trimmed]
        # Tokens may share or repeat characters, so ends and starts need not rise.
        self._last_end = list(accumulate(self.ends, max))
        first_start = list(accumulate((start for start, _ in reversed(trimmed)), min))
        self._first_start = first_start[::-1]  # of a token and all after it

    def tokens_before(self, char: int) -> int | None:
        """Count the tokens that end at or before a character; None if one crosses it."""
        count = bisect_right(self._last_end, char)
        crossed = count < len(self._first_start) and self._first_start[count] < char
        return None if crossed else count


def _cut_at(
    chars: Sequence[int], ours: _Boundaries, theirs: _Boundaries, whole: Part, *, keep_both: bool
) -> list[Part]:
    """Cut a part where both tokenizations can be cut, on request leaving no side without tokens."""
    start, end = zip(whole.chars, whole.primary, whole.secondary, strict=True)
    cuts = [start]  # a character, and the tokens of both models before it
    for char in chars:
        num_primary, num_secondary = ours.tokens_before(char), theirs.tokens_before(char)
        if num_primary is None or num_secondary is None:
            continue
        cut = (char, start[1] + num_primary, start[2] + num_secondary)
        sides = ((cuts[-1][i], cut[i], end[i]) for i in (1, 2))
        if not keep_both or all(before < here < after for before, here, after in sides):
            cuts.append(cut)
    return [Part(*zip(a, b, strict=True)) for a, b in pairwise([*cuts, end])]


def default_words() -> tuple[str, ...]:
    """Return 60,000 English words of SCOWL (see data/words.LICENSE.txt), in alphabetical order."""
    data = resources.files("fuseprompt").joinpath("data", "words.txt.gz").read_bytes()
    return tuple(gzip.decompress(data).decode("ascii").split("\n"))


@runtime_checkable
class WordTokenizer(Protocol):
    """The text side of a model; `fuseprompt.text.tokenizer.Tokenizer` has all of it."""

    vocab_size: int
    special_ids: frozenset[int]
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides how text is cut."""

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids, without special tokens, and the characters that each stands for."""

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of each word as it stands in running text, after a blank."""

    def decode_with_spans(self, ids: Sequence[int]) -> tuple[str, list[Span]]:
        """Return the text of ids, and the characters that each stands for."""


@runtime_checkable
class TokenEmbeddings(Protocol):
    """All that the method needs of a model: a tokenizer, and a vector for each id."""

    @property
    def tokenizer(self) -> WordTokenizer:
        """Text to ids and back."""

    @property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """One vector per id."""
