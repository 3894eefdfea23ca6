"""Words that two tokenizations of a text share, by character offsets (section 3.2).

`align` finds the finest sequence of *parts* such that each holds whole words of the text and whole
tokens of both tokenizers. Usually a part is a word; a token that spans several words makes one part
of them. `Alignment.cut` cuts parts with many tokens at offsets where both tokenizers have a
boundary. `split` and `merge` carry embeddings or gradients to parts and back and lose nothing.
Nothing here compares token strings, so tokenizers that lower-case are no special case. Read next:
`fuseprompt.fuse.fit`.
"""

import gzip
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate, pairwise
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from fuseprompt.errors import AlignmentError

Span = tuple[int, int]

_WORD = re.compile(r"\s*\S+")


@runtime_checkable
class WordTokenizer(Protocol):
    """What this package needs of a tokenizer; `fuseprompt.text.tokenizer.Tokenizer` has it."""

    vocab_size: int
    special_ids: frozenset[int]
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides how text is cut."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids and the characters that each stands for, end exclusive."""

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of each word as it stands in running text, after a blank."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""


@runtime_checkable
class TokenEmbeddings(Protocol):
    """What this package needs of a model: a tokenizer, and a vector for each id."""

    @property
    def tokenizer(self) -> WordTokenizer:
        """Text to ids and back."""

    @property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """One vector per id, shape (v, d)."""


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A run of characters and the tokens of both models that stand for it, ends exclusive.

    Attributes:
        chars: Characters of the text.
        primary: Positions of the primary's tokens.
        secondary: Positions of the secondary's tokens.
    """

    chars: Span
    primary: Span
    secondary: Span

    @property
    def num_primary(self) -> int:
        """Tokens of the primary, k."""
        return self.primary[1] - self.primary[0]

    @property
    def num_secondary(self) -> int:
        """Tokens of the secondary, l."""
        return self.secondary[1] - self.secondary[0]


@final
@dataclass(frozen=True)
class Alignment:
    """Two tokenizations of one text, side by side.

    Attributes:
        text: The text.
        primary_spans: Characters of each token of the primary.
        secondary_spans: Characters of each token of the secondary.
        parts: Every token of both is in exactly one part, in order.
    """

    text: str
    primary_spans: tuple[Span, ...]
    secondary_spans: tuple[Span, ...]
    parts: tuple[Part, ...]

    @classmethod
    def of_counts(cls, counts: Sequence[tuple[int, int]]) -> "Alignment":
        """Align words of which only the token counts (k, l) are known; none can be cut."""
        ours = [0, *accumulate(primary for primary, _ in counts)]
        theirs = [0, *accumulate(secondary for _, secondary in counts)]
        places = zip(pairwise(ours), pairwise(theirs), strict=True)
        parts = tuple(Part((0, 0), primary, secondary) for primary, secondary in places)
        return cls("", ((0, 0),) * ours[-1], ((0, 0),) * theirs[-1], parts)

    def cut(self, max_tokens: int) -> "Alignment":
        """Cut parts with more tokens at offsets that both tokenizers share, into as few as fit.

        Returns:
            An alignment of the same tokens. A part stays too long where there is no such offset.
        """
        parts: list[Part] = []
        for part in self.parts:
            if max(part.num_primary, part.num_secondary) <= max_tokens:
                parts.append(part)
            else:
                parts.extend(_fit(self._atoms(part), max_tokens))
        return Alignment(self.text, self.primary_spans, self.secondary_spans, tuple(parts))

    def _atoms(self, part: Part) -> list[Part]:
        """Cut a part at every shared offset with tokens of both models on either side."""
        ours = _Edges(_trim(self.text, self.primary_spans[slice(*part.primary)]))
        theirs = _Edges(_trim(self.text, self.secondary_spans[slice(*part.secondary)]))
        edges = sorted(set(ours.ends) | set(theirs.ends))
        return _cut_at(edges, ours, theirs, part, keep_both=True)


def align(text: str, primary_spans: Sequence[Span], secondary_spans: Sequence[Span]) -> Alignment:
    """Align two tokenizations of a text, word by word (section 3.2).

    Args:
        text: The text that both tokenizers were given.
        primary_spans: Characters of each token, end exclusive, as fast tokenizers report them.
        secondary_spans: The same for the secondary.

    Returns:
        The alignment. A part has no token of a model that drops its characters.

    Raises:
        AlignmentError: If a span lies outside the text.
    """
    for name, spans in (("primary", primary_spans), ("secondary", secondary_spans)):
        for start, end in spans:
            if not 0 <= start <= end <= len(text):
                raise AlignmentError(
                    f"align got the {name} span ({start}, {end}) for a text of {len(text)} "
                    "characters. Pass the text that was tokenised, and offsets in characters, not "
                    "bytes."
                )
    whole = Part((0, len(text)), (0, len(primary_spans)), (0, len(secondary_spans)))
    starts = [start for start, _ in word_spans(text)[1:]]
    ours, theirs = _Edges(_trim(text, primary_spans)), _Edges(_trim(text, secondary_spans))
    parts = _cut_at(starts, ours, theirs, whole, keep_both=False)
    if not text and not primary_spans and not secondary_spans:
        parts = []
    return Alignment(text, tuple(primary_spans), tuple(secondary_spans), tuple(parts))


def split(rows: Shaped[Tensor, "s d"], counts: Sequence[int]) -> list[Shaped[Tensor, "1 d _"]]:
    """Cut rows into one tensor (1, d, l) per part, tokens along the tubes (`split` of section 3.2).

    Args:
        rows: Embeddings or gradients of a text, one row per token, shape (s, d).
        counts: Tokens in each part.

    Returns:
        Views, one per part; a part without tokens gives tubes of length 0.

    Raises:
        AlignmentError: If the counts do not add up to the rows.
    """
    if sum(counts) != rows.shape[0]:
        raise AlignmentError(
            f"split got counts that add up to {sum(counts)} for {rows.shape[0]} rows. Take the "
            "counts from the alignment of the same text, and leave out rows of special tokens and "
            "padding."
        )
    return [part.T.unsqueeze(0) for part in torch.split(rows, list(counts))]


def merge(parts: Sequence[Shaped[Tensor, "1 d _"]]) -> Shaped[Tensor, "s d"]:
    """Put the rows of parts together again, the exact inverse of `split`.

    Returns:
        One row per token, shape (s, d).

    Raises:
        AlignmentError: If there is no part, so that the width is unknown.
    """
    if not parts:
        raise AlignmentError(
            "merge got no parts, expected at least one. The empty text has no tensor to merge."
        )
    return torch.cat([part.squeeze(0).T for part in parts])


def word_spans(text: str) -> list[Span]:
    """Cut a text into words, each with the white space before it, as byte-level tokenizers do.

    Args:
        text: Any text.

    Returns:
        Spans of characters, end exclusive, without gap from 0 to len(text); white space at the end
        goes to the last word. A text of white space only is one word, the empty text none.

    Example:
        >>> text = "An  image of"
        >>> [text[start:end] for start, end in word_spans(text)]
        ['An', '  image', ' of']
    """
    spans = [match.span() for match in _WORD.finditer(text)]
    if not text:
        return []
    if not spans:
        return [(0, len(text))]
    return [*spans[:-1], (spans[-1][0], len(text))]


def default_words() -> tuple[str, ...]:
    """Return the English words that an adapter is fitted to by default, in alphabetical order.

    Returns:
        60,000 words of SCOWL (see data/words.LICENSE.txt), without blanks and possessives: all of
        its lists up to size 35 and a random part of those up to size 60.
    """
    data = resources.files("fuseprompt").joinpath("data", "words.txt.gz").read_bytes()
    return tuple(gzip.decompress(data).decode("ascii").split("\n"))


def token_spans(tokenizer: WordTokenizer, token_ids: Sequence[int], text: str) -> list[Span]:
    """Return the characters that each token stands for, even for ids that encoding would not give.

    Returns:
        Spans, end exclusive. Pieces of one character share its span.

    Raises:
        AlignmentError: If the ids do not decode to the text.
    """
    ids, spans = tokenizer.encode_with_offsets(text)
    if ids == list(token_ids):
        return spans
    # The ids are no fixed point of decode and encode: decode every beginning, which is slow and
    # always right.
    ends = [0]
    for count in range(1, len(token_ids) + 1):
        ends.append(max(ends[-1], _common_prefix(tokenizer.decode(token_ids[:count]), text)))
    if ends[-1] != len(text):
        raise AlignmentError(
            f"token_spans got ids that decode to {tokenizer.decode(token_ids)!r}, expected the "
            f"text {text!r}. Pass the text that tokenizer.decode returns for the ids."
        )
    spans = list(pairwise(ends))
    for i in reversed(range(len(spans) - 1)):
        if spans[i][0] == spans[i][1]:  # first bytes of a character: it is complete only later
            spans[i] = (spans[i][0], spans[i + 1][1])
    for i in range(1, len(spans)):
        if spans[i - 1][1] == spans[i][1]:
            spans[i] = spans[i - 1]
    return spans


class _Edges:
    """Where a tokenization can be cut: after i tokens at character c if none crosses c."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.ends = [end for _, end in spans]
        self.reached = list(accumulate(self.ends, max))  # tokens may share or repeat characters
        tail = list(accumulate((start for start, _ in reversed(spans)), min))
        self.ahead = [*reversed(tail)]

    def tokens_before(self, char: int) -> int | None:
        """Count the tokens that end at or before a character; None if one crosses it."""
        count = bisect_right(self.reached, char)
        crossed = count < len(self.ahead) and self.ahead[count] < char
        return None if crossed else count


def _cut_at(
    chars: Sequence[int], ours: _Edges, theirs: _Edges, whole: Part, *, keep_both: bool
) -> list[Part]:
    """Cut a part where both tokenizations can be cut, on request leaving no side without tokens."""
    parts: list[Part] = []
    (start, stop), (p0, p_end), (s0, s_end) = whole.chars, whole.primary, whole.secondary
    p_at, s_at = p0, s0
    for char in chars:
        before, before_theirs = ours.tokens_before(char), theirs.tokens_before(char)
        if before is None or before_theirs is None:
            continue
        p_cut, s_cut = p0 + before, s0 + before_theirs
        if keep_both and not (p_at < p_cut < p_end and s_at < s_cut < s_end):
            continue
        parts.append(Part((start, char), (p_at, p_cut), (s_at, s_cut)))
        start, p_at, s_at = char, p_cut, s_cut
    return [*parts, Part((start, stop), (p_at, p_end), (s_at, s_end))]


def _fit(atoms: list[Part], max_tokens: int) -> list[Part]:
    """Join neighbours from the left as long as neither model has too many tokens."""
    parts = [atoms[0]]
    for atom in atoms[1:]:
        last = parts[-1]
        joined = Part(
            (last.chars[0], atom.chars[1]),
            (last.primary[0], atom.primary[1]),
            (last.secondary[0], atom.secondary[1]),
        )
        if max(joined.num_primary, joined.num_secondary) <= max_tokens:
            parts[-1] = joined
        else:
            parts.append(atom)
    return parts


def _trim(text: str, spans: Sequence[Span]) -> list[Span]:
    """Shorten each span by its outer white space; a span of white space only stays as it is."""
    trimmed = []
    for start, end in spans:
        piece = text[start:end]
        left = start + len(piece) - len(piece.lstrip())
        trimmed.append((left, left + len(piece.strip())) if piece.strip() else (start, end))
    return trimmed


def _common_prefix(a: str, b: str) -> int:
    """Return how many characters two texts share from the start."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
