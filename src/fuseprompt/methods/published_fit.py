"""Algorithm 2 as printed: the maps of the published search, and their place in the cache.

Literal, and slow on purpose: `fuseprompt.fuse.fit` finds better maps in a fifteenth of the time.
Read next: `fuseprompt.methods.published`, which uses them.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from fuseprompt.fuse.alignment import default_words
from fuseprompt.fuse.fit import FitSettings, fingerprint_fit
from fuseprompt.fuse.table import CaseReport, JacobianTable
from fuseprompt.models.base import HasVocabulary
from fuseprompt.proposals.fuse import load_or_make


def load_or_fit_published(
    primary: HasVocabulary,
    secondary: HasVocabulary,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> JacobianTable:
    """Return algorithm 2's maps of two models for the default words, computed once and kept."""
    words, settings = dict.fromkeys(default_words(), 1.0), FitSettings(by_pairs=False)
    parts = fingerprint_fit(primary, secondary, words=words, settings=settings)
    parts["procedure"] = "published"

    def fit() -> JacobianTable:
        plain = [
            PublishedModel(model.tokenizer.encode, model.vocabulary.detach().float().cpu())
            for model in (primary, secondary)
        ]
        maps = fit_published(*plain, words=tuple(words), on_progress=on_progress)
        unknown = float("nan")  # The procedure holds no words out.
        report = CaseReport(0, 0, 0.0, unknown, unknown, unknown)
        jacobians = {(0, length): found for length, found in maps.items()}
        reports = dict.fromkeys(jacobians, report)
        return JacobianTable(jacobians, reports, settings.max_tokens, {}, parts, {})

    return load_or_make(parts, fit)


@final
@dataclass(frozen=True)
class PublishedModel:
    """A model as algorithm 2 uses it: text to ids, one at a time, and an embedding for each id."""

    encode: Callable[[str], Sequence[int]]
    vocabulary: Float[Tensor, "v d"]


def fit_published(
    primary: PublishedModel,
    secondary: PublishedModel,
    *,
    words: Sequence[str],
    max_tokens: int = 4,
    words_per_case: int = 16_384,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[int, Float[Tensor, "dp ds l"]]:
    """Fit the maps of algorithm 2 as it is printed.

    Words are tokenised one by one, word tensors filled entry by entry, and the pseudo-inverse is
    that of the block-circulant matrix, block-diagonalised by Fourier matrices in double precision
    (Jin et al. 2017, which the algorithm cites). Both tensors need one depth, so the primary's
    words are cut to l tokens. `seed` decides which words are taken.

    Returns:
        For each number l of secondary tokens that occurs, V_i^+ * V_j.
    """
    shuffled = list(words)
    random.Random(seed).shuffle(shuffled)
    cases: dict[int, list[str]] = {length: [] for length in range(1, max_tokens + 1)}
    for word in (f" {word}" for word in shuffled):
        ours, theirs = primary.encode(word), secondary.encode(word)
        chosen = cases.get(len(theirs))
        if ours and chosen is not None and len(chosen) < words_per_case:
            chosen.append(word)
    maps = {}
    for length, chosen in cases.items():
        if chosen:
            v_i = _word_tensor(chosen, primary, length)
            v_j = _word_tensor(chosen, secondary, length)
            # The product by its definition: the block-circulant matrix times the unfolded tensor.
            unfolded = v_j.movedim(-1, 0).flatten(0, 1)  # frontal slices on top of each other
            product = bcirc(circulant_pinv(v_i)) @ unfolded
            maps[length] = product.reshape(length, -1, v_j.shape[1]).movedim(0, -1)
        if on_progress is not None:
            on_progress(length, max_tokens)
    return maps


def circulant_pinv(a: Float[Tensor, "w d l"]) -> Float[Tensor, "d w l"]:
    """Return V^+ by the block-circulant matrix, at l times the memory that Fourier slices need."""
    rows, columns, length = a.shape
    matrix = bcirc(a).to(torch.complex128).reshape(length, rows, length, columns)
    # Fourier matrices from both sides turn the block-circulant matrix into a block-diagonal one.
    matrix = torch.fft.ifft(torch.fft.fft(matrix, dim=0), dim=2)
    diagonal = [matrix[i, :, i].clone() for i in range(length)]
    matrix = torch.zeros(length, columns, length, rows, dtype=torch.complex128)
    for i, block in enumerate(diagonal):
        matrix[i, :, i] = torch.linalg.pinv(block)
    matrix = torch.fft.fft(torch.fft.ifft(matrix, dim=0), dim=2)
    first: Tensor = matrix[:, :, 0].real.permute(1, 2, 0)  # the first block column, (d, w, l)
    return first.to(a.dtype)


def _word_tensor(words: list[str], model: PublishedModel, length: int) -> Float[Tensor, "w d l"]:
    """Add the embedding of the n-th token of word m to slice n of row m."""
    tensor = torch.zeros(
        len(words), model.vocabulary.shape[1], length, dtype=model.vocabulary.dtype
    )
    for m, word in enumerate(words):
        for n, token in enumerate(model.encode(word)[:length]):
            tensor[m, :, n] += model.vocabulary[token]
    return tensor


def bcirc(a: Float[Tensor, "m n l"]) -> Float[Tensor, "ml nl"]:
    """Return the block-circulant matrix (appendix A): block (i, j) is slice i - j mod l."""
    steps = torch.arange(a.shape[-1])
    blocks = a[..., (steps[:, None] - steps) % a.shape[-1]]  # (m, n, l, l), block indices last
    return blocks.permute(2, 0, 3, 1).flatten(2, 3).flatten(0, 1)
