"""Tiny tokenizers of the families that real models use, the same in every process."""

from functools import cache
from pathlib import Path

from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from fuseprompt.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"

LINES = (
    """
the quick brown fox jumps over the lazy dog
a photo of a happy dog running on the beach
an image of a small red house near the mountains
two people are walking along the river at night
she bought extraordinary flowers for the kitchen table
Running, jumping; swimming! (and "reading") aren't the same.
international conversations happen everywhere, unfortunately
a cat sleeps beside the broken window of an old building
the train station was crowded with travellers in 1987
bread, butter and strawberry jam on a wooden plate
misunderstandings between neighbours are uncomfortable
black and white photograph of a motorcycle on the street
children playing football in the park under grey clouds
beautiful sunset over the ocean with sailing boats
the museum's new entrance looks like a glass pyramid
""".strip().split("\n")
    * 3
)


@cache
def byte_bpe(vocab_size: int = 420, *, prefix_space: bool = False) -> Tokenizer:
    """Byte-level BPE, as GPT-2 and SmolLM2 have; any text round-trips."""
    rust = Rust(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    rust.decoder = decoders.ByteLevel()
    rust.train_from_iterator(
        LINES,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>"],
            show_progress=False,
        ),
    )
    return Tokenizer(rust, name=f"byte-bpe-{vocab_size}")


@cache
def word_piece() -> Tokenizer:
    """Lower-casing WordPiece of 300 tokens, as BERT has; unknown characters are [UNK]."""
    return _read("word_piece.json", name="word-piece")


@cache
def end_of_word_bpe() -> Tokenizer:
    """Lower-casing byte-level BPE with an end-of-word suffix, as CLIP has; blanks get lost."""
    return _read("end_of_word_bpe.json", name="end-of-word-bpe")


def _read(file: str, *, name: str) -> Tokenizer:
    """Return a tokenizer that was trained on `LINES` once and is kept.

    The trainers of WordPiece and of BPE with a suffix number the pieces of words in the order of a
    hash map, so that they give other tokens in each process.
    """
    return Tokenizer(Rust.from_file(str(DATA / file)), name=name)


@cache
def meta_bpe(vocab_size: int = 300) -> Tokenizer:
    """BPE with a meta symbol for blanks and byte fallback, as Llama and Gemma have."""
    rust = Rust(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    rust.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    rust.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    byte_tokens = [f"<0x{i:02X}>" for i in range(256)]
    rust.train_from_iterator(
        LINES,
        trainers.BpeTrainer(
            vocab_size=vocab_size + 256,
            special_tokens=["<unk>", *byte_tokens],
            max_token_length=12,
            show_progress=False,
        ),
    )
    return Tokenizer(rust, name="meta-bpe")
