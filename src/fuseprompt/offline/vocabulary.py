"""CLIP's tokenizer and ImageNet's class names, read from the open-clip package without its code."""

import ast
import gzip

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE

from fuseprompt.errors import PrepareError

#: CLIP's special tokens; the second also pads.
CLIP_START, CLIP_END = "<|startoftext|>", "<|endoftext|>"

#: CLIP marks the last piece of a word with this.
CLIP_WORD_END = "</w>"

#: Number of CLIP's tokens: 256 bytes, the same ending a word, the merges and two special tokens.
CLIP_VOCABULARY = 49_408


def build_clip_tokenizer(compressed_merges: bytes) -> Tokenizer:
    """Build CLIP's tokenizer, which frames a text, from `bpe_simple_vocab_16e6.txt.gz`."""
    # The first line is a header; the list is longer than what CLIP uses.
    lines = gzip.decompress(compressed_merges).decode("utf-8").split("\n")
    used = lines[1 : CLIP_VOCABULARY - 2 * 256 - 2 + 1]
    merges = [line.partition(" ")[::2] for line in used]
    alphabet = list(byte_alphabet().values())
    tokens = [
        *alphabet,
        *(letter + CLIP_WORD_END for letter in alphabet),
        *(left + right for left, right in merges),
        CLIP_START,
        CLIP_END,
    ]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != CLIP_VOCABULARY:
        raise PrepareError(
            f"CLIP has {CLIP_VOCABULARY} tokens, the merge list gives {len(vocabulary)}."
        )
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=CLIP_END,
            continuing_subword_prefix="",
            end_of_word_suffix=CLIP_WORD_END,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"),
                behavior="removed",
                invert=True,
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    # "Ġ" is the byte alphabet's space: each word-end mark becomes one, and the last is cut off.
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(CLIP_WORD_END, "Ġ"), decoders.ByteLevel(), decoders.Strip(" ", 0, 1)]
    )
    # By position, as keywords differ by version; False are trim_offsets and add_prefix_space.
    tokenizer.post_processor = processors.RobertaProcessing(
        (CLIP_END, vocabulary[CLIP_END]), (CLIP_START, vocabulary[CLIP_START]), False, False
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (CLIP_START, CLIP_END)]
    )
    return tokenizer


def read_clip_strings(tokenizer: Tokenizer) -> list[str]:
    """Return the text of each CLIP token without its word-end mark; U+FFFD for broken bytes."""
    bytes_of = {letter: value for value, letter in byte_alphabet().items()}
    strings: list[str] = []
    for index in range(tokenizer.get_vocab_size()):
        token = tokenizer.id_to_token(index)
        if token in (CLIP_START, CLIP_END):
            strings.append(token)
            continue
        raw = bytes(bytes_of[letter] for letter in token.removesuffix(CLIP_WORD_END))
        strings.append(raw.decode("utf-8", errors="replace"))
    return strings


def byte_alphabet() -> dict[int, str]:
    """Return the printable letter that byte-level BPE writes for each byte, in CLIP's order."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [value for value in range(256) if value not in printable]
    return {value: chr(value) for value in printable} | {
        value: chr(256 + n) for n, value in enumerate(others)
    }


def read_class_names(source: str) -> list[str]:
    """Read ImageNet's 1000 names, in output order, from open-clip's `zero_shot_metadata.py`."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign):
            continue
        targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if targets == ["IMAGENET_CLASSNAMES"]:
            names = ast.literal_eval(node.value)
            if len(names) == 1000 and all(isinstance(name, str) for name in names):
                return list(names)
            raise PrepareError(f"Expected 1000 class names, got {len(names)}.")
    raise PrepareError("Expected a list IMAGENET_CLASSNAMES in zero_shot_metadata.py, found none.")
