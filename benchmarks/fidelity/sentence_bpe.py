"""MiniLM with CLIP's vocabulary: its body, and another embedding table; nothing is trained.

A token's row is the mean of MiniLM's rows for the pieces of its text.
"""

import gzip
from pathlib import Path

import torch
from tokenizers import Tokenizer as Rust
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn

from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.offline.manifest import offline_folder
from fuseprompt.text.tokenizer import Tokenizer

_CLIP = Path(__file__).parents[1] / "vocabularies" / "clip.json.gz"


def load_sentence_bpe(folder: Path | None = None) -> SentenceEncoder:
    """Return the sentence model of a folder, by default the offline one, over CLIP's tokens."""
    parent = SentenceEncoder.load(offline_folder("sentence") if folder is None else folder)
    clip = Rust.from_str(gzip.decompress(_CLIP.read_bytes()).decode())
    special = {"<|startoftext|>": "[CLS]", "<|endoftext|>": "[SEP]"}
    ids, pieces = parent.tokenizer.ids_by_token, parent.tokenizer.encode_batch(read_texts(clip))
    rows = []
    for index, own in enumerate(pieces):
        named = special.get(clip.id_to_token(index))
        # Half a letter or a control character has no piece of its own.
        used = [ids[named]] if named else own or [ids["[UNK]"]]
        rows.append(parent.vocabulary[used].mean(dim=0))
    table = nn.Embedding(len(rows), len(rows[0]), _weight=torch.stack(rows))
    parent.module.set_input_embeddings(table)
    return SentenceEncoder(parent.module, Tokenizer(clip), name="sentence-bpe")


def read_texts(clip: Rust) -> list[str]:
    """Return the text of each CLIP token without its word-end mark; U+FFFD for broken bytes."""
    letters = dict(zip(sorted(ByteLevel.alphabet()), _alphabet_bytes(), strict=True))
    texts = []
    for index in range(clip.get_vocab_size()):
        token = clip.id_to_token(index).removesuffix("</w>")
        known = [letters[c] for c in token if c in letters]
        texts.append(bytes(known).decode("utf-8", errors="replace"))
    return texts


def _alphabet_bytes() -> list[int]:
    """Return the byte behind each letter of byte-level BPE, in the order of the letters."""
    printable = [b for b in range(256) if chr(b) in ByteLevel.alphabet()]
    others = [b for b in range(256) if b not in printable]
    return [*printable, *others]
