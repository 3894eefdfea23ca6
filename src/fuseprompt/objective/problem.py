"""Problems, and constraints on their texts; a user adds a constraint with three methods."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Protocol, final, runtime_checkable

from fuseprompt.errors import ProblemError


@final
@dataclass(frozen=True)
class Problem:
    """One thing to find text for.

    Attributes:
        id: Distinct from those of other problems.
        targets: Targets by the terms' `target` names.
        prefix: Fixed beginning of the text.
        start: The text, prefix included, that a method begins with. AutoDAN appends to it, its
            sentence end aside. By default it is the prefix, and methods that edit draw a text.
        template: What stands around the text for the primary, "{}" in place of the text: it is
            read and not scored, and what follows there is the end of the text, which then needs no
            full stop.
        seed: Made of the search's seed and of `id` by default.
        bounds: The largest allowed loss of terms by name, for this problem only.
    """

    id: str
    targets: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    start: str | None = None
    template: str = "{}"
    seed: int | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", MappingProxyType(dict(self.targets)))
        object.__setattr__(self, "bounds", MappingProxyType(dict(self.bounds)))
        if self.template.count("{}") != 1:
            raise ProblemError(
                f"Problem {self.id!r}: a template has one {{}} where the text goes, got "
                f"{self.template!r}."
            )
        if self.start is not None and not self.start.startswith(self.prefix):
            raise ProblemError(
                f"Problem {self.id!r}: the start {self.start!r} does not begin with the prefix "
                f"{self.prefix!r}. Expected the whole text, prefix included."
            )

    @property
    def around(self) -> tuple[str, str]:
        """What stands before and after the text for the primary."""
        before, after = self.template.split("{}")
        return before, after


@runtime_checkable
class Constraint(Protocol):
    """A rule on the texts of a problem: what forbids a text also counts by how much it does."""

    def allows(self, text: str, problem: Problem) -> bool:
        """Return whether a partial or finished text may be a candidate."""

    def missing(self, text: str, problem: Problem) -> float:
        """Return how many demands a text does not meet, begun ones in part; 0 if it may end."""

    def wanted(self, text: str, problem: Problem) -> list[str]:
        """Return texts that should be proposed next, such as " dog"."""


#: Words that a text may say twice.
_LITTLE: Final = frozenset({"the", "and", "for", "with", "from", "that", "his", "her", "its"})

#: Signs other than punctuation, dashes outside words, numbers of over four digits, and letters that
#: stand alone, but for "a" and "I".
_NO_PROSE: Final = re.compile(
    r"[^\w\s.,;!?'\"-]|_|(?<!\w)-|-(?=\W)|\d{5,}|(?<![\w'])[b-hj-zB-HJ-Z](?=[^\w'-])"
)


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, flags=re.IGNORECASE) is not None


@dataclass(frozen=True)
class _Ban:
    """The base of constraints that only forbid."""

    def allows(self, text: str, problem: Problem) -> bool:
        """Return whether nothing is too much."""
        return self.missing(text, problem) == 0.0

    def missing(self, text: str, problem: Problem) -> float:
        """Return by how much the text is over the limit, in words."""
        raise NotImplementedError

    def wanted(self, text: str, problem: Problem) -> list[str]:
        """Return nothing."""
        return []


@final
@dataclass(frozen=True)
class Forbid(_Ban):
    """No text with one of these words, in any case; "cat" does not forbid "catalogue"."""

    words: tuple[str, ...]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(
            "|".join(rf"(?<!\w){re.escape(w)}(?!\w)" for w in self.words), flags=re.IGNORECASE
        )

    def missing(self, text: str, problem: Problem) -> float:
        """Return how often one of the words is in the text."""
        return float(len(self._pattern.findall(text))) if self.words else 0.0


@final
@dataclass(frozen=True)
class Prose(_Ban):
    """No signs of code, tables or dialogues, no lone letters, no word of over three letters twice.

    All are cheap for a language model, which so calls fluent what nobody would write.
    """

    def missing(self, text: str, problem: Problem) -> float:
        """Return how many of them the text has."""
        words = [word for word in re.findall(r"\w+", text.lower()) if len(word) > 3]
        return float(len(words) - len(set(words)) + len(_NO_PROSE.findall(text)))


@final
@dataclass(frozen=True)
class MaxWords(_Ban):
    """At most this many white-space words after the prefix."""

    count: int

    def missing(self, text: str, problem: Problem) -> float:
        """Return how many words the text has more."""
        return float(max(0, len(text.removeprefix(problem.prefix).split()) - self.count))


@final
@dataclass(frozen=True)
class NoRepeats(_Ban):
    """No word of three letters or more twice after the prefix, in any case, little ones aside."""

    def missing(self, text: str, problem: Problem) -> float:
        """Return how many words are said again."""
        words = list_words(text.removeprefix(problem.prefix))
        long = [word.removesuffix("s") for word in words if len(word) > 2 and word not in _LITTLE]
        return float(len(long) - len(set(long)))


@final
@dataclass(frozen=True)
class MaxChanged(_Ban):
    """At most this share of the words of the problem's start may be replaced, removed or added."""

    share: float

    def missing(self, text: str, problem: Problem) -> float:
        """Return how many changes are too many; raise a `ProblemError` without a start."""
        if problem.start is None:
            raise ProblemError(
                f"Problem {problem.id!r} has no start, which MaxChanged compares a text with. Set "
                "Problem(start=...), or leave the constraint out."
            )
        allowed = int(self.share * len(list_words(problem.start)) + 1e-9)
        return float(max(0, count_changed(problem.start, text) - allowed))


@final
@dataclass(frozen=True)
class Require:
    """Every finished text has all of these words or phrases, in any case."""

    words: tuple[str, ...] = field(default=())

    def allows(self, text: str, problem: Problem) -> bool:
        """Return True: a text may still get the words."""
        return True

    def missing(self, text: str, problem: Problem) -> float:
        """Return how many of the words are not in the text; one that it ends in counts in part."""
        # Otherwise the first token of a longer word would never be worth its price.
        words = [w for w in self.words if not _has_word(text, w)]
        return sum((len(_rest(text, w)) / (len(w) + 1) for w in words), 0.0)

    def wanted(self, text: str, problem: Problem) -> list[str]:
        """Return the missing words, blank first, or the rest of one whose start ends the text."""
        return [_rest(text, word) for word in self.words if not _has_word(text, word)]


@final
@dataclass(frozen=True)
class EndsSentence:
    """Every finished text has so many words and ends with a full stop, "!" or "?"."""

    num_words: int = 1

    def allows(self, text: str, problem: Problem) -> bool:
        """Return True: a text may still end."""
        return True

    def missing(self, text: str, problem: Problem) -> float:
        """Return 1 for a text that breaks off or is too short."""
        # Not by how many words: texts of long words would be dropped while they grow.
        is_long = len(list_words(text)) >= self.num_words
        return float(not (is_long and text.endswith((".", "!", "?"))))

    def wanted(self, text: str, problem: Problem) -> list[str]:
        """Return nothing: methods end texts by themselves."""
        return []


def _rest(text: str, word: str) -> str:
    """Return a missing word with its blank, without the start of it that the text ends in."""
    full = " " + word
    sizes = range(len(full) - 1, 1, -1)
    ends = (n for n in sizes if text.lower().endswith(full[:n].lower()))
    return full[next(ends, 0) :]


def list_words(text: str) -> list[str]:
    """Return the words of a text without punctuation around them, in lower case."""
    return [word for word in (w.strip(".,;:!?\"'()").lower() for w in text.split()) if word]


def word_changes(old: str, new: str) -> list[tuple[int, str, str]]:
    """Return what differs: the number of a word in `old`, the words there, those in `new`."""
    before, after = list_words(old), list_words(new)
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    return [
        (i, " ".join(before[i:j]), " ".join(after[k:m]))
        for kind, i, j, k, m in matcher.get_opcodes()
        if kind != "equal"
    ]


def count_changed(old: str, new: str) -> int:
    """Return how many words were replaced, removed or added, punctuation and case aside."""
    return sum(max(len(a.split()), len(b.split())) for _, a, b in word_changes(old, new))
