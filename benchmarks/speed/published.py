"""The published procedure, re-implemented plainly from the paper's text, as a baseline.

`fit_published` is algorithm 2 as printed: words are tokenised one by one, word tensors are filled
entry by entry, and V_i^+ * V_j is formed with the pseudo-inverse of the block-circulant matrix,
block-diagonalised by Fourier matrices in double precision (Jin et al. 2017, which the algorithm
cites). The primary's words are cut to l tokens, since both tensors need one depth. Nothing in the
package uses its result; `fuseprompt.fuse.fit` is what to use. Read next:
`benchmarks.speed.fit`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor


@final
@dataclass(frozen=True)
class PublishedModel:
    """A model as the published procedure uses it.

    Attributes:
        encode: Text to ids, one text at a time; the stack of the paper calls a transformers
            tokenizer.
        vocabulary: One embedding per id.
    """

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
) -> dict[int, Float[Tensor, "dp ds l"]]:
    """Fit one map per number of secondary tokens, as algorithm 2 does.

    Args:
        primary: The model whose tokens are chosen.
        secondary: The other model.
        words: Words without blanks.
        max_tokens: Largest number of secondary tokens.
        words_per_case: Most words for one map.
        seed: Which words are taken.

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
            maps[length] = _product(circulant_pinv(v_i), v_j)
    return maps


def circulant_pinv(a: Float[Tensor, "w d l"]) -> Float[Tensor, "d w l"]:
    """Return the pseudo-inverse of a tensor by way of its block-circulant matrix.

    Args:
        a: Any tensor.

    Returns:
        V^+ of section 3.2, at l times the memory that Fourier slices need.
    """
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


def _product(a: Float[Tensor, "m k l"], b: Float[Tensor, "k n l"]) -> Float[Tensor, "m n l"]:
    """Multiply by the definition: the block-circulant matrix times the unfolded tensor."""
    unfolded = b.movedim(-1, 0).flatten(0, 1)  # frontal slices on top of each other
    folded: Tensor = (bcirc(a) @ unfolded).reshape(a.shape[-1], a.shape[0], -1)
    return folded.movedim(0, -1)


def bcirc(a: Float[Tensor, "m n l"]) -> Float[Tensor, "ml nl"]:
    """Return the block-circulant matrix (appendix A): block (i, j) is slice i - j mod l."""
    steps = torch.arange(a.shape[-1])
    blocks = a[..., (steps[:, None] - steps) % a.shape[-1]]  # (m, n, l, l), block indices last
    return blocks.permute(2, 0, 3, 1).flatten(2, 3).flatten(0, 1)
