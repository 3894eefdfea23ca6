"""The tiny models are what the tests take them for: words split differently, weights repeat."""

import subprocess
import sys

import torch

from fuseprompt.text.tokenizer import Tokenizer
from tests.text import tiny as text_tiny
from tests.text.tiny import LINES
from tests.tiny import (
    MAX_LENGTH,
    bert_tokenizer,
    clip,
    clip_tokenizer,
    gpt2,
    gpt2_tokenizer,
    llama,
    llama_tokenizer,
    seeded,
    sentence_encoder,
)

WORDS = sorted({w.strip(",.;!()\"'").lower() for line in LINES for w in line.split()})


def count_pieces(tokenizer: Tokenizer) -> list[int]:
    return [len(ids) for ids in tokenizer.encode_batch([" " + w for w in WORDS])]


def test_the_three_families_cut_words_differently() -> None:
    counts = [
        count_pieces(Tokenizer.from_hf(t))
        for t in (gpt2_tokenizer(), bert_tokenizer(), clip_tokenizer())
    ]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        different = sum(a != b for a, b in zip(counts[i], counts[j], strict=True))
        assert different > len(WORDS) // 5


def test_tokenizers_are_the_same_in_every_process() -> None:
    names = ("byte_bpe", "word_piece", "end_of_word_bpe", "meta_bpe")
    code = "from tests.text import tiny\n" + "".join(
        f"print(tiny.{name}().fingerprint)\n" for name in names
    )
    here = "".join(f"{getattr(text_tiny, name)().fingerprint}\n" for name in names)
    for _ in range(2):
        there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (there.stdout, there.stderr) == (here, "")


def test_every_family_has_words_of_one_piece_and_of_three_or_more() -> None:
    for tokenizer in (gpt2_tokenizer(), bert_tokenizer(), clip_tokenizer()):
        counts = count_pieces(Tokenizer.from_hf(tokenizer))
        assert min(counts) == 1
        assert max(counts) >= 3


def test_frames() -> None:
    assert Tokenizer.from_hf(gpt2_tokenizer()).num_special == 0
    assert len(Tokenizer.from_hf(llama_tokenizer()).prefix_ids) == 1
    assert Tokenizer.from_hf(bert_tokenizer()).num_special == 2
    assert Tokenizer.from_hf(clip_tokenizer()).num_special == 2


def test_models_are_tiny_and_made_once() -> None:
    for model in (gpt2(), llama(), sentence_encoder(), clip()):
        assert model.max_length == MAX_LENGTH
        assert model.vocabulary.shape[1] == 16
    assert gpt2() is gpt2()


def test_seeded_repeats_itself_and_leaves_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    first = seeded(7, lambda: torch.nn.Linear(3, 3)).weight
    again = seeded(7, lambda: torch.nn.Linear(3, 3)).weight
    other = seeded(8, lambda: torch.nn.Linear(3, 3)).weight
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())
