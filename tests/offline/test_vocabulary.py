"""The two BPE tokenizers and the class names, on small tables; known ids on the real ones."""

import gzip
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from fuseprompt.errors import PrepareError
from fuseprompt.models.gguf import build_byte_tokenizer
from fuseprompt.offline.convert import (
    CLIP_END,
    CLIP_START,
    CLIP_VOCABULARY,
    build_clip_tokenizer,
    byte_alphabet,
    read_class_names,
    read_clip_strings,
)
from fuseprompt.offline.manifest import offline_folder

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def small_merges(number: int) -> bytes:
    """Return a merge list as long as CLIP's: "ca" and "cat</w>" first, then pairs of letters."""
    first = ["c a", "ca t</w>"]
    letters = list(byte_alphabet().values())
    pairs = (f"{a} {b}" for a, b in itertools.product(letters, letters) if (a, b) != ("c", "a"))
    lines = ["#version", *first, *itertools.islice(pairs, number - len(first))]
    return gzip.compress("\n".join(lines).encode())


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    """A byte-level tokenizer with three merges, one of which must never apply."""
    merges = ["Ġ a", "c a", "1 2"]
    tokens = [*SPECIAL, *byte_alphabet().values(), "Ġa", "ca", "12"]
    kinds = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))
    return build_byte_tokenizer(tokens, kinds, merges, digits_apart=True)


@pytest.fixture(scope="module")
def clip() -> Tokenizer:
    """CLIP's tokenizer over `small_merges`."""
    return build_clip_tokenizer(small_merges(CLIP_VOCABULARY - 2 * 256 - 2))


def test_the_byte_alphabet_is_one_to_one_and_printable() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet) == list(range(256))
    assert len(set(alphabet.values())) == 256
    assert all(letter.isprintable() and not letter.isspace() for letter in alphabet.values())
    assert (alphabet[ord("A")], alphabet[ord(" ")]) == ("A", "Ġ")


def test_merges_apply_and_digits_stay_apart(smollm: Tokenizer) -> None:
    assert smollm.encode("ca a 12").tokens == ["ca", "Ġa", "Ġ", "1", "2"]


def test_control_tokens_are_single_and_special(smollm: Tokenizer) -> None:
    assert smollm.encode("a<|im_end|>").ids[-1] == 2
    assert smollm.decode([2], skip_special_tokens=True) == ""


@given(text=st.text())
def test_any_text_survives(smollm: Tokenizer, text: str) -> None:
    assert smollm.decode(smollm.encode(text).ids, skip_special_tokens=False) == text


def test_clip_frames_lowercases_and_marks_word_ends(clip: Tokenizer) -> None:
    assert clip.get_vocab_size() == CLIP_VOCABULARY
    assert clip.encode("Cat  a").tokens == [CLIP_START, "cat</w>", "a</w>", CLIP_END]
    assert clip.token_to_id(CLIP_START) == CLIP_VOCABULARY - 2
    assert clip.token_to_id(CLIP_END) == CLIP_VOCABULARY - 1


def test_clip_decodes_words_apart_without_a_trailing_space(clip: Tokenizer) -> None:
    ids = clip.encode("cat a cat").ids
    assert clip.decode(ids, skip_special_tokens=True) == "cat a cat"


def test_clip_tokens_are_read_as_text(clip: Tokenizer) -> None:
    strings = read_clip_strings(clip)
    assert len(strings) == CLIP_VOCABULARY
    assert strings[clip.token_to_id("cat</w>")] == "cat"
    assert strings[clip.token_to_id("ca")] == "ca"
    assert strings[clip.token_to_id("Ã")] == "\N{REPLACEMENT CHARACTER}"
    assert strings[-2:] == [CLIP_START, CLIP_END]


def test_a_short_merge_list_is_refused() -> None:
    with pytest.raises(PrepareError, match="CLIP has 49408 tokens, the merge list gives 614"):
        build_clip_tokenizer(small_merges(100))


def test_class_names_are_read_without_running_the_source() -> None:
    names = [f"thing {n}" for n in range(1000)]
    source = f"raise SystemExit\nA = B = 1\nIMAGENET_CLASSNAMES = (\n{names!r}\n)\n"
    assert read_class_names(source) == names


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", "found none"),
        ("IMAGENET_CLASSNAMES = ['a']", "Expected 1000 class names, got 1"),
    ],
)
def test_another_source_is_refused(source: str, message: str) -> None:
    with pytest.raises(PrepareError, match=message):
        read_class_names(source)


def test_class_names_must_be_literal() -> None:
    with pytest.raises(ValueError, match="malformed"):
        read_class_names("IMAGENET_CLASSNAMES = open('x')")


@pytest.mark.offline
def test_the_real_clip_tokenizer_gives_the_published_ids() -> None:
    tokenizer = Tokenizer.from_file(str(offline_folder("sentence-bpe") / "tokenizer.json"))
    ids = tokenizer.encode("A photo of a cat.").ids
    assert ids == [49406, 320, 1125, 539, 320, 2368, 269, 49407]


@pytest.mark.offline
def test_the_real_language_model_tokenizer_has_single_digits_and_its_special_tokens() -> None:
    tokenizer = Tokenizer.from_file(str(offline_folder("lm") / "tokenizer.json"))
    tokens = tokenizer.encode("An image of a cat in 2024.").tokens
    assert tokens == ["An", "Ġimage", "Ġof", "Ġa", "Ġcat", "Ġin", "Ġ", "2", "0", "2", "4", "."]
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2]
    assert tokenizer.get_vocab_size() == 49152
