"""The tokenizer of the language model and the class names; known ids on the real one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from fuseprompt.errors import PrepareError
from fuseprompt.offline.convert import build_byte_tokenizer, read_class_names
from fuseprompt.offline.manifest import offline_folder

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    """A byte-level tokenizer with three merges, one of which must never apply."""
    merges = ["Ġ a", "c a", "1 2"]
    tokens = [*SPECIAL, *sorted(ByteLevel.alphabet()), "Ġa", "ca", "12"]
    kinds = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))
    return build_byte_tokenizer(tokens, kinds, merges)


def test_merges_apply_and_digits_stay_apart(smollm: Tokenizer) -> None:
    assert smollm.encode("ca a 12").tokens == ["ca", "Ġa", "Ġ", "1", "2"]


def test_control_tokens_are_single_and_special(smollm: Tokenizer) -> None:
    assert smollm.encode("a<|im_end|>").ids[-1] == 2
    assert smollm.decode([2], skip_special_tokens=True) == ""


@given(text=st.text())
def test_any_text_survives(smollm: Tokenizer, text: str) -> None:
    assert smollm.decode(smollm.encode(text).ids, skip_special_tokens=False) == text


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
def test_the_real_language_model_tokenizer_has_single_digits_and_its_special_tokens() -> None:
    tokenizer = Tokenizer.from_file(str(offline_folder("lm") / "tokenizer.json"))
    tokens = tokenizer.encode("An image of a cat in 2024.").tokens
    assert tokens == ["An", "Ġimage", "Ġof", "Ġa", "Ġcat", "Ġin", "Ġ", "2", "0", "2", "4", "."]
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2]
    assert tokenizer.get_vocab_size() == 49152
