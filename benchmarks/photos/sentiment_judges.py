"""What VADER and AFINN make of captions, and which sentiment words the captions lean on.

Two lexicons of other people judge the tone: VADER (package vaderSentiment 3.3.2), whose authors'
corpora are part of what the offline classifier was trained on, so it is no independent judge; and
AFINN (package afinn 0.1), whose list was no part of it. Both packages have to be installed by hand.
This file searches nothing. Read next: `sentiment.py`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

#: Beyond this VADER's compound score counts as a tone, as its authors say.
VADER_TONE = 0.05

_POSSESSIVE = re.compile(r"(?<=\w)('s)\b")


class Judges:
    """The two lexicons, loaded."""

    def __init__(self) -> None:
        """Load both; an ImportError names the package that is missing."""
        from afinn import Afinn
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

        self._vader = SentimentIntensityAnalyzer()
        self._afinn = Afinn()

    def judge(self, text: str) -> dict[str, Any]:
        """Return VADER's labels, AFINN's label or None where it knows no word, and VADER's words.

        VADER splits words at blanks only, so that it finds no "enemy" in "the enemy's flag";
        `vader_split` is its label where possessives are words of their own, as in treebanks.
        """
        compound = self._vader.polarity_scores(text)["compound"]
        split = self._vader.polarity_scores(split_possessives(text))["compound"]
        known = self._afinn.find_all(text)
        words = [word.strip(".,;:!?'\"()").lower() for word in text.split()]
        return {
            "vader": label(compound, VADER_TONE),
            "vader_split": label(split, VADER_TONE),
            "afinn": label(self._afinn.score(text), 0.0) if known else None,
            "words": [word for word in words if word in self._vader.lexicon],
        }


def split_possessives(text: str) -> str:
    """Return a text with each "'s" as a word of its own."""
    return _POSSESSIVE.sub(r" \1", text)


def label(score: float, threshold: float) -> str:
    """Return the tone of a score: neutral from -threshold to threshold."""
    if abs(score) <= threshold:
        return "neutral"
    return "positive" if score > 0 else "negative"


def most_frequent_word(words: Sequence[Sequence[str]]) -> tuple[str, float]:
    """Return the word that most captions have, and the share of captions that have it."""
    counts = Counter(word for caption in words for word in set(caption))
    if not counts:
        return "", 0.0
    word, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    return word, count / len(words)


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)
