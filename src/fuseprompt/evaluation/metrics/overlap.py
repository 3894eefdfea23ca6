"""BLEU-1 to 4, ROUGE-L and CIDEr-D, computed by pycocoevalcap on tokenized captions.

CIDEr-D is what coco-caption and the papers print as "CIDEr" (sigma 6, clipped, times 10). It weighs
words by how few images' references have them, so it needs many images, and the same ones, to be
compared. Read next: `fuseprompt.evaluation.metrics.meteor`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Words:
    """Tokenized captions and references of the same images, in the same order.

    Attributes:
        captions: One line of words per image; empty where there is no caption.
        references: At least one line of words per image.
    """

    captions: Mapping[str, str]
    references: Mapping[str, tuple[str, ...]]

    def only(self, ids: frozenset[str]) -> "Words":
        """Return the words of some images."""
        return Words(
            {i: line for i, line in self.captions.items() if i in ids},
            {i: lines for i, lines in self.references.items() if i in ids},
        )


def bleu(words: Words) -> tuple[float, float, float, float]:
    """Return BLEU-1 to BLEU-4 of the whole set, from 0 to 1."""
    from pycocoevalcap.bleu.bleu import Bleu

    scores, _ = Bleu(4).compute_score(*_as_library(words), verbose=0)
    one, two, three, four = (float(score) for score in scores)
    return one, two, three, four


def rouge_l(words: Words) -> float:
    """Return the mean ROUGE-L over images, from 0 to 1."""
    from pycocoevalcap.rouge.rouge import Rouge

    mean, _ = Rouge().compute_score(*_as_library(words))
    return float(mean)


def cider_d(words: Words) -> dict[str, float]:
    """Return the CIDEr-D of each image, from 0 to 10; words' rarities are from all references."""
    from pycocoevalcap.cider.cider import Cider

    _, scores = Cider().compute_score(*_as_library(words))
    return {i: float(score) for i, score in zip(words.captions, scores, strict=True)}


def _as_library(words: Words) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return references and captions as pycocoevalcap takes them."""
    references = {i: list(lines) for i, lines in words.references.items()}
    return references, {i: [line] for i, line in words.captions.items()}
