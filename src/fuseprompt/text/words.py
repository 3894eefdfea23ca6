"""Words: runs of characters between white space, the unit that all tokenizers share (section 3.1).

`word_spans` cuts a text so that every character belongs to exactly one word, leading white space
included, as byte-level tokenizers see it. `default_words` is the list that an adapter is fitted to
when nothing else is given. Nothing is lower-cased and no punctuation is removed. This file knows no
tokenizer. Read next: `fuseprompt.text.alignment`.
"""

import gzip
import re
from collections import Counter
from collections.abc import Iterable
from importlib import resources

_WORD = re.compile(r"\s*\S+")
_WORD_LIST = "words.txt.gz"


def word_spans(text: str) -> list[tuple[int, int]]:
    """Cut a text into words, each with the white space before it.

    Args:
        text: Any text.

    Returns:
        Spans of characters, end exclusive; white space at the end goes to the last word. They
        follow each other without gap from 0 to len(text); a text of white space only is one word,
        the empty text none.

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


def in_running_text(word: str) -> str:
    """Return a word as it stands inside a text: with one blank before it.

    Byte-level tokenizers have other tokens for " dog" than for "dog", and a search writes the
    former.

    Args:
        word: A word without white space.

    Returns:
        The word with a leading blank.
    """
    return " " + word


def default_words() -> tuple[str, ...]:
    """Return the list of English words that ships with the package, in alphabetical order.

    About 60,000 words of SCOWL (see data/words.LICENSE.txt): all of its lists up to size 35 and a
    random part of those up to size 60, possessives left out.

    Returns:
        The words, without blanks.
    """
    data = resources.files("fuseprompt").joinpath("data", _WORD_LIST).read_bytes()
    return tuple(gzip.decompress(data).decode("ascii").split("\n"))


def count_words(lines: Iterable[str]) -> dict[str, int]:
    """Count the words of a corpus, for fitting to its vocabulary and its frequencies.

    Args:
        lines: Texts.

    Returns:
        How often each word occurs, the most frequent first and equally frequent ones in
        alphabetical order.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split())
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
