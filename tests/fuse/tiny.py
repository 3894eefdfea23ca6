"""Tiny models: trained tokenizers and random or related embedding matrices."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fuseprompt.text.tokenizer import Tokenizer
from tests.text.tiny import LINES, byte_bpe, word_piece

WORDS = sorted({w for line in LINES for w in line.split()})


@dataclass(frozen=True)
class TinyModel:
    """What a fit needs of a model."""

    tokenizer: Tokenizer
    vocabulary: Tensor
    name: str = "tiny"


def tiny_model(
    tokenizer: Tokenizer, width: int, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> TinyModel:
    """Return a model with normal embeddings."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(tokenizer.vocab_size, width, generator=generator, dtype=dtype)
    return TinyModel(tokenizer, rows)


def tiny_pair(dtype: torch.dtype = torch.float64) -> tuple[TinyModel, TinyModel]:
    """Return a byte-level and a WordPiece model of widths 5 and 4."""
    return tiny_model(byte_bpe(), 5, dtype=dtype), tiny_model(word_piece(), 4, seed=1, dtype=dtype)


def made_up_words(count: int) -> list[str]:
    """Return distinct words of varied length from the training text's syllables."""
    generator = torch.Generator().manual_seed(0)
    starts = sorted({w[:4].strip(",.;!()\"'") for w in WORDS} - {""})
    ends = sorted({w[-4:].strip(",.;!()\"'") for w in WORDS} - {""})
    words: dict[str, None] = {}
    while len(words) < count:
        i, j, n = (
            int(torch.randint(m, (1,), generator=generator)) for m in (len(starts), len(ends), 3)
        )
        words[(starts[i] + ends[j] * (n == 1) + (ends[i % len(ends)] if n == 2 else "")) or "a"] = (
            None
        )
    return list(words)
