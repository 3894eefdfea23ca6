"""What the adapter costs to fit, beside the published procedure (`python -m benchmarks.speed fit`).

Both sides get the same random embedding matrices of the paper's widths, the real GPT-2 and CLIP
tokenizers and the same words, and run in a process of their own, so that peak memory is that of one
side. No number is asserted here. Read next: `fuseprompt.methods.published_fit`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.speed.process import peak_mb, resident_mb, run_in_child
from benchmarks.speed.vocabularies import load_vocabularies, read_vocabulary
from fuseprompt.fuse.alignment import default_words
from fuseprompt.text.tokenizer import Tokenizer

_NAMES: Final = ("gpt2", "clip")
#: Widths of GPT-2-medium and of CLIP ViT-B/32's text tower.
_WIDTHS: Final = (1024, 512)

Arm = Literal["ours", "published"]


@final
@dataclass(frozen=True)
class FitBench:
    """Cost of a fit at the paper's shapes.

    Attributes:
        published_s: Seconds of the published procedure, tokenising included.
        ours_s: Seconds of ours.
        ratio: The first over the second.
        published_peak_mb: Memory that the published procedure needed beyond the imported libraries,
            in MiB.
        ours_peak_mb: The same for ours.
        words_per_case: Most words that a map was fitted to, on both sides.
    """

    published_s: float
    ours_s: float
    ratio: float
    published_peak_mb: float
    ours_peak_mb: float
    words_per_case: int


@final
@dataclass(frozen=True)
class _RandomModel:
    tokenizer: Tokenizer
    vocabulary: Float[Tensor, "v d"]


def bench_fit(*, words_per_case: int = 16_384, num_words: int | None = None) -> FitBench:
    """Fit the adapter both ways, each in its own process, one after the other.

    Args:
        words_per_case: Most words for one map.
        num_words: Use only the first words of a shuffled list, for a quick look; by default all
            60,000.

    Returns:
        Seconds and memory of both.

    Raises:
        FuseError: If one side fails.
    """
    ours = _run_arm("ours", words_per_case, num_words)
    published = _run_arm("published", words_per_case, num_words)
    return FitBench(
        round(published["seconds"], 2),
        round(ours["seconds"], 2),
        round(published["seconds"] / ours["seconds"], 1),
        round(published["peak_mb"], 1),
        round(ours["peak_mb"], 1),
        words_per_case,
    )


def run_arm(arm: Arm, words_per_case: int, num_words: int | None) -> dict[str, float]:
    """Run one side; the body of the child processes.

    Args:
        arm: Which side.
        words_per_case: Most words for one map.
        num_words: How many words of the shuffled list; None for all.

    Returns:
        Its "seconds" and "peak_mb".
    """
    from fuseprompt.fuse.fit import FitSettings, fit_adapter
    from fuseprompt.methods.published_fit import PublishedModel, fit_published

    before = resident_mb()
    generator = torch.Generator().manual_seed(0)
    loaded = load_vocabularies()
    models = []
    for tokenizer, width in zip((loaded.gpt2, loaded.clip), _WIDTHS, strict=True):
        rows = torch.randn(tokenizer.vocab_size, width, generator=generator)
        models.append(_RandomModel(tokenizer, rows))
    words = list(default_words())
    order = torch.randperm(len(words), generator=generator).tolist()
    words = [words[i] for i in order[:num_words]]
    if arm == "ours":
        settings = FitSettings(words_per_case=words_per_case)
        started = time.perf_counter()
        fit_adapter(models[0], models[1], words=words, settings=settings)
    else:
        plain = [
            PublishedModel(_one_by_one(name), m.vocabulary)
            for name, m in zip(_NAMES, models, strict=True)
        ]
        started = time.perf_counter()
        fit_published(plain[0], plain[1], words=words, words_per_case=words_per_case)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_mb": peak_mb() - before}


def _run_arm(arm: Arm, words_per_case: int, num_words: int | None) -> dict[str, float]:
    return run_in_child(
        __name__,
        f"run_arm({arm!r}, {words_per_case}, {num_words})",
        what=f"The {arm} side",
        hint="If it was killed, free some memory: the published side needs 8 GB.",
    )


def _one_by_one(name: str) -> Callable[[str], list[int]]:
    """Return the transformers tokenizer of a vocabulary, for one text at a time."""
    from tokenizers import Tokenizer as RustTokenizer
    from transformers import PreTrainedTokenizerFast

    rust = RustTokenizer.from_str(read_vocabulary(name))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rust)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return encode
