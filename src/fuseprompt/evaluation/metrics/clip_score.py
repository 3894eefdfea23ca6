"""CLIPScore and RefCLIPScore (Hessel et al., 2021) with any image-text model.

The numbers of papers are those of CLIP ViT-B/32; with another model they are on another scale. A
search that maximises the similarity of the same model is not judged by it: the result says so. Read
next: `fuseprompt.evaluation.metrics.sentiment`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from fuseprompt.evaluation.metrics.outputs import outputs_of
from fuseprompt.models.image_text import ImageTextModel
from fuseprompt.models.images import open_image

#: What the authors put before every text, and the factor that spreads their cosines over [0, 1].
_PREFIX: Final = "A photo depicts "
_FACTOR: Final = 2.5

#: Pictures that are in memory at a time.
_PICTURES: Final = 16


def clip_score(
    captions: Mapping[str, str], images: Mapping[str, Path], model: ImageTextModel
) -> dict[str, float]:
    """Return 2.5 times the cosine of each image and its caption, at least 0.

    Args:
        captions: Caption by image id; an image whose caption is missing or empty scores 0.
        images: File by image id, for every image of the split.
        model: The judge.

    Returns:
        Score by image id, for every image of the split.

    Raises:
        ImageError: If an image that has a caption cannot be read.
    """
    written = [i for i in images if captions.get(i)]
    if not written:
        return dict.fromkeys(images, 0.0)
    texts = outputs_of(model, [_PREFIX + captions[i] for i in written])
    cosines: list[float] = []
    for start in range(0, len(written), _PICTURES):
        pictures = [open_image(images[i]) for i in written[start : start + _PICTURES]]
        features = model.image_features(pictures).cpu()
        cosines += (features * texts[start : start + _PICTURES]).sum(dim=-1).tolist()
    found = {i: _FACTOR * max(c, 0.0) for i, c in zip(written, cosines, strict=True)}
    return {i: found.get(i, 0.0) for i in images}


def ref_clip_score(
    scores: Mapping[str, float],
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    model: ImageTextModel,
) -> dict[str, float]:
    """Return the harmonic mean of CLIPScore and the cosine of the closest reference.

    Args:
        scores: CLIPScore by image id.
        captions: Caption by image id.
        references: Captions by people, by image id, at least one for each of `scores`.
        model: The judge.

    Returns:
        Score by image id; 0 where either is 0.
    """
    written = [i for i in scores if captions.get(i)]
    best = dict.fromkeys(scores, 0.0)
    if written:
        texts = outputs_of(model, [_PREFIX + captions[i] for i in written])
        people = [[_PREFIX + text for text in references[i]] for i in written]
        flat = outputs_of(model, [text for given in people for text in given])
        for i, text, part in zip(
            written, texts, torch.split(flat, [len(g) for g in people]), strict=True
        ):
            best[i] = max(0.0, _closest(text, part))
    return {i: _harmonic(score, best[i]) for i, score in scores.items()}


def _closest(text: Float[Tensor, " o"], others: Float[Tensor, "r o"]) -> float:
    return float(torch.mv(others, text).max())


def _harmonic(one: float, other: float) -> float:
    return 2 * one * other / (one + other) if one > 0 and other > 0 else 0.0
