"""The vocabularies of the paper's models, for benchmarks with random weights.

GPT-2's and CLIP's are in `benchmarks/vocabularies`; RoBERTa's is GPT-2's with other ids. Read
next: `benchmarks.speed.shapes`.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from fuseprompt.text.tokenizer import Padding, Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

#: The tokenizer.json of both, compressed (licences beside them).
_FOLDER: Final = Path(__file__).parents[1] / "vocabularies"

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


def read_vocabulary(name: str) -> str:
    """Return the text of a tokenizer.json, "gpt2" or "clip"."""
    return gzip.decompress((_FOLDER / f"{name}.json.gz").read_bytes()).decode("utf-8")


def load_vocabularies() -> Vocabularies:
    """Return the tokenizers of the paper's models."""
    return build_vocabularies(read_vocabulary("gpt2"), read_vocabulary("clip"))


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


def _byte_level(vocabulary: dict[str, int], merges: Sequence[tuple[str, ...]]) -> "RustTokenizer":
    from tokenizers import Tokenizer as RustTokenizer
    from tokenizers import decoders, models, pre_tokenizers

    rust = RustTokenizer(models.BPE(vocab=vocabulary, merges=merges))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    return rust
