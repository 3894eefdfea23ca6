"""Constraints: words that a text must or must not have; a user adds one with three methods."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, final, runtime_checkable


@runtime_checkable
class Constraint(Protocol):
    """A rule on texts."""

    def allows(self, text: str) -> bool:
        """Return whether a partial or finished text may be a candidate."""
        ...

    def missing(self, text: str) -> float:
        """Return how many demands a text does not meet, begun ones in part; 0 if it may end."""
        ...

    def wanted(self, text: str) -> list[str]:
        """Return texts that should be proposed next, such as " dog"."""
        ...


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, flags=re.IGNORECASE) is not None


@final
@dataclass(frozen=True)
class Forbid:
    """No text with one of these words, in any case; "cat" does not forbid "catalogue"."""

    words: tuple[str, ...]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(
            "|".join(rf"(?<!\w){re.escape(w)}(?!\w)" for w in self.words), flags=re.IGNORECASE
        )

    def allows(self, text: str) -> bool:
        """Return whether none of the words is in the text."""
        return not self.words or self._pattern.search(text) is None

    def missing(self, text: str) -> float:
        """Return 0: a ban demands nothing."""
        return 0.0

    def wanted(self, text: str) -> list[str]:
        """Return nothing."""
        return []


@final
@dataclass(frozen=True)
class Require:
    """Every finished text has all of these words or phrases, in any case."""

    words: tuple[str, ...] = field(default=())

    def allows(self, text: str) -> bool:
        """Return True: a text may still get the words."""
        return True

    def missing(self, text: str) -> float:
        """Return how many of the words are not in the text; one that it ends in counts in part."""
        # Otherwise the first token of a longer word would never be worth its price.
        words = [w for w in self.words if not _has_word(text, w)]
        return sum((len(_rest(text, w)) / (len(w) + 1) for w in words), 0.0)

    def wanted(self, text: str) -> list[str]:
        """Return the missing words, blank first, or the rest of one whose start ends the text."""
        return [_rest(text, word) for word in self.words if not _has_word(text, word)]


def _rest(text: str, word: str) -> str:
    """Return a missing word with its blank, without the start of it that the text ends in."""
    full = " " + word
    sizes = range(len(full) - 1, 1, -1)
    ends = (n for n in sizes if text.lower().endswith(full[:n].lower()))
    return full[next(ends, 0) :]
