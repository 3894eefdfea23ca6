"""Published rows of the datasets that the paper reports, each with its source.

Numbers are percent, as printed. Rows of one table are not made alike: prefix, length, the text that
a language model was adapted to, and the images left out differ, and each is worth points. Nothing
is computed here. Read next: `fuseprompt.evaluation.report.table`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final


@final
@dataclass(frozen=True)
class PeerRow:
    """What others report.

    Attributes:
        name: Name of the method.
        scores: Percent, by the names of `fuseprompt.evaluation.metrics.base.METRICS`, and the share
            of captions with the asked tone as "sentiment_accuracy".
        source: Where it stands.
        note: What makes it differ from its neighbours, or "".
        trained: Whether captions of images, or captions alone, were trained on.
    """

    name: str
    scores: Mapping[str, float]
    source: str
    note: str = ""
    trained: bool = False


_TABLE_1: Final = "FUSE paper, table 1"
_TABLE_2: Final = "FUSE paper, table 2"
_MAGIC: Final = "MAGIC's released captions, scored again with coco-caption"


def _coco(name: str, row: tuple[float | None, ...], *, trained: bool = False) -> PeerRow:
    names = ("bleu_4", "meteor", "cider", "spice")
    scores = {n: v for n, v in zip(names, row, strict=True) if v is not None}
    return PeerRow(name, scores, _TABLE_1, trained=trained)


def _nocaps(name: str, cider: float, spice: float, *, trained: bool = False) -> PeerRow:
    return PeerRow(name, {"cider": cider, "spice": spice}, _TABLE_1, trained=trained)


def _tone(name: str, row: tuple[float, float, float], *, trained: bool = False) -> PeerRow:
    names = ("bleu_3", "meteor", "sentiment_accuracy")
    return PeerRow(name, dict(zip(names, row, strict=True)), _TABLE_2, trained=trained)


#: Rows by dataset, split and tone ("" for none).
PEERS: Final[Mapping[tuple[str, str, str], tuple[PeerRow, ...]]] = {
    ("karpathy", "test", ""): (
        _coco("FUSE", (1.59, 14.72, 15.93, 9.15)),
        _coco("ZeroCap", (2.60, 11.50, 14.60, 5.50)),
        _coco("ConZIC", (1.29, 11.23, 13.26, 5.01)),
        PeerRow(
            "ZeroCap, run by MAGIC's authors",
            {"bleu_4": 6.98, "meteor": 15.43, "rouge_l": 31.80, "cider": 34.47, "spice": 9.2},
            f"{_MAGIC}; SPICE as they print it",
            "its language model was adapted to COCO captions; 16 tokens, beam 1",
            trained=True,
        ),
        PeerRow(
            "MAGIC",
            {"bleu_4": 12.88, "meteor": 17.36, "rouge_l": 39.88, "cider": 49.29, "spice": 11.3},
            f"{_MAGIC}; SPICE as they print it",
            "its language model was adapted to COCO captions; 4,982 of the 5,000 images",
            trained=True,
        ),
        PeerRow(
            "CLIPRe",
            {"bleu_4": 4.90, "rouge_l": 28.97, "cider": 13.62},
            _MAGIC,
            "chooses a training caption; 4,982 of the 5,000 images",
            trained=True,
        ),
        _coco("ClipCap", (32.2, 27.1, 108.35, 20.12), trained=True),
        _coco("CLIP-VL", (40.2, 29.7, 130.3, 23.8), trained=True),
        _coco("LEMON-B", (40.3, 30.2, 133.3, 23.3), trained=True),
        _coco("VinVL", (40.9, 30.9, 140.4, 25.1), trained=True),
        _coco("BLIP-2", (43.7, None, 145.8, None), trained=True),
        _coco("OFA", (44.9, 32.5, 154.9, 26.6), trained=True),
        _coco("mPLUG", (46.5, 32.0, 155.1, 26.0), trained=True),
    ),
    ("nocaps", "val", ""): (
        _nocaps("FUSE", 20.65, 6.64),
        _nocaps("ClipCap", 65.7, 11.1, trained=True),
        PeerRow(
            "ViECap",
            {"cider": 66.2},
            "ViECap's README",
            "trained on COCO captions; 61.1, 64.3 and 65.0 on the three domains, each with word "
            "rarities of its own",
            trained=True,
        ),
        _nocaps("LEMON-B", 79.0, 12.3, trained=True),
        _nocaps("VinVL", 90.4, 13.07, trained=True),
        _nocaps("mPLUG", 114.8, 14.8, trained=True),
        _nocaps("BLIP-2", 119.7, 15.40, trained=True),
    ),
    ("senticap", "test", "positive"): (
        _tone("FUSE", (1.91, 10.40, 83.8)),
        _tone("ConZIC", (1.89, 5.39, 97.2)),
        _tone("StyleNet", (12.1, 12.1, 45.2), trained=True),
        _tone("MSCap", (16.2, 16.8, 92.5), trained=True),
        _tone("MemCap", (17.0, 16.6, 96.1), trained=True),
        _tone("ADS-Cap", (18.9, 18.5, 99.7), trained=True),
    ),
    ("senticap", "test", "negative"): (
        _tone("FUSE", (2.29, 7.42, 85.6)),
        _tone("ConZIC", (1.78, 5.54, 99.1)),
        _tone("StyleNet", (10.6, 10.9, 56.6), trained=True),
        _tone("MSCap", (15.4, 16.2, 93.4), trained=True),
        _tone("MemCap", (18.1, 15.7, 98.9), trained=True),
        _tone("ADS-Cap", (21.0, 18.0, 98.2), trained=True),
    ),
}

#: What has to be known before rows are compared, by dataset.
REMARKS: Final[Mapping[str, str]] = {
    "karpathy": "Papers differ in whether the prefix is part of a scored caption. Adding "
    '"An image of" to ZeroCap\'s captions moves BLEU-4 from 6.98 to 5.64 and CIDEr from 34.5 to '
    "29.4. Here it is not part of it.",
    "nocaps": "CIDEr of a domain has word rarities of its own: domains cannot be averaged, and all "
    "may lie below the whole.",
    "senticap": "Accuracies of different judges cannot be compared: FUSE does not say which judge "
    "gave its own and optimised a classifier of three tones; ConZIC's and ADS-Cap's judges know "
    "two tones and were trained on SentiCap.",
}
