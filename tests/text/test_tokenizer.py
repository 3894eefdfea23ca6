"""The tokenizer wrapper: nothing added, cleaned, cut or padded; errors that say what to do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rust
from tokenizers import models, pre_tokenizers, processors

from fuseprompt.errors import FuseWarning, ModelError, TokenizerError
from fuseprompt.text.tokenizer import Tokenizer
from tests.text.tiny import LINES, byte_bpe, end_of_word_bpe, meta_bpe, word_piece
from tests.tiny import bert_tokenizer, clip_tokenizer, gpt2_tokenizer, llama_tokenizer

LONG = " ".join(LINES)


@given(st.text(max_size=40))
def test_byte_level_ids_decode_to_the_text(text: str) -> None:
    tokenizer = byte_bpe()
    if any(special in text for special in tokenizer.special_texts):
        return
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.text(max_size=20), max_size=5))
def test_batches_are_single_calls(texts: list[str]) -> None:
    for tokenizer in (byte_bpe(), word_piece(), end_of_word_bpe(), meta_bpe()):
        rows = tokenizer.encode_batch(texts)
        assert rows == [tokenizer.encode(t) for t in texts]
        assert tokenizer.decode_batch(rows) == [tokenizer.decode(r) for r in rows]


def test_encoding_adds_cuts_and_pads_nothing() -> None:
    hf = bert_tokenizer()
    tokenizer = Tokenizer.from_hf(hf)
    ids = tokenizer.encode(LONG)
    assert len(ids) > hf.model_max_length
    assert not tokenizer.special_ids & set(ids)
    assert [len(r) for r in tokenizer.encode_batch(["a", LONG])] == [1, len(ids)]


def test_a_backend_that_truncates_and_pads_is_copied_without_either() -> None:
    rust = Rust.from_str(byte_bpe()._backend.to_str())
    rust.enable_truncation(3)
    rust.enable_padding(length=8)
    tokenizer = Tokenizer(rust)
    assert tokenizer.encode(LINES[0]) == byte_bpe().encode(LINES[0])
    assert rust.truncation is not None


@pytest.mark.parametrize(("piece", "moved_to"), [("##e", None), ("the", None), ("##e", 500)])
def test_ids_without_a_token_are_noted_and_the_last_token_counts(
    piece: str, moved_to: int | None
) -> None:
    """A damaged file has them, or a tokenizer to which tokens were added at later ids."""
    content = json.loads(word_piece()._backend.to_str())
    vocabulary = content["model"]["vocab"]
    del vocabulary[piece]
    if moved_to is not None:
        vocabulary[piece] = moved_to
    with pytest.warns(FuseWarning, match=r"the tokenizer has no token for \d+ ids below"):
        tokenizer = Tokenizer(Rust.from_str(json.dumps(content)))
    last = max(vocabulary.values())
    assert tokenizer.vocab_size == len(tokenizer.token_texts) == last + 1
    assert tokenizer.token_texts[last] != ""


@pytest.mark.parametrize("moved_to", [10**6, 10**9, 2**31])
def test_ids_far_beyond_the_tokens_are_refused(moved_to: int) -> None:
    """A table with a row for each would take all memory there is."""
    content = json.loads(word_piece()._backend.to_str())
    content["model"]["vocab"]["##e"] = moved_to
    with pytest.raises(TokenizerError, match=rf"ids up to {moved_to:,}: its file is damaged"):
        Tokenizer(Rust.from_str(json.dumps(content)))


@pytest.mark.parametrize("text", ["caf\udce9", "\ud83d", "\udcff a"])
def test_half_characters_are_refused(text: str) -> None:
    tokenizer = byte_bpe()
    readers: list[Callable[[str], object]] = [
        tokenizer.encode,
        tokenizer.encode_with_offsets,
        lambda text: tokenizer.encode_batch(["a", text]),
        lambda text: tokenizer.encode_words(["a", text]),
    ]
    for read in readers:
        with pytest.raises(TokenizerError, match=r"expected texts of whole.*Write it in UTF-8\.$"):
            read(text)


@pytest.mark.parametrize("hf", [gpt2_tokenizer, llama_tokenizer, bert_tokenizer, clip_tokenizer])
def test_frame_is_what_the_family_adds_itself(hf: Any) -> None:
    loaded = hf()
    tokenizer = Tokenizer.from_hf(loaded)
    for text in (LINES[0], "a", ""):
        assert tokenizer.add_special_tokens(tokenizer.encode(text)) == loaded(text)["input_ids"]
    assert tokenizer.num_special == len(tokenizer.add_special_tokens([]))


def test_offsets_are_spans_of_the_text() -> None:
    ids, spans = word_piece().encode_with_offsets("a photo of Travellers.")
    pieces = ["a photo of Travellers."[a:b].lower() for a, b in spans]
    assert "".join(pieces) == "aphotooftravellers."
    assert len(ids) == len(spans)


def test_token_texts_are_what_a_token_adds_after_a_word() -> None:
    for tokenizer in (byte_bpe(), word_piece(), meta_bpe()):
        stem = tokenizer.encode("a")
        for i, text in enumerate(tokenizer.token_texts):
            if i not in tokenizer.special_ids:
                assert tokenizer.decode([*stem, i]) == tokenizer.decode(stem) + text
    texts = byte_bpe().token_texts
    assert " the" in texts
    assert len(texts) == byte_bpe().vocab_size


def test_special_tokens_have_no_text_and_can_be_found_by_it() -> None:
    tokenizer = word_piece()
    (cls,) = tokenizer.special_ids_of("[CLS]")
    assert cls in tokenizer.special_ids
    assert tokenizer.token_texts[cls] == ""
    assert tokenizer.special_texts == ("[CLS]", "[PAD]", "[SEP]", "[UNK]")
    assert tokenizer.special_ids_of("[NOPE]") == ()


def test_words_in_blocks_are_words_alone() -> None:
    words = sorted({w for line in LINES for w in line.split()}) * 12
    for tokenizer in (byte_bpe(), word_piece(), end_of_word_bpe(), meta_bpe()):
        assert tokenizer.encode_words(words) == [tokenizer._encode_word(w) for w in words]
    assert byte_bpe().encode_words([]) == []


def test_fingerprint_tells_tokenizers_apart_and_repeats() -> None:
    again = Tokenizer(Rust.from_str(byte_bpe()._backend.to_str()))
    assert again.fingerprint == byte_bpe().fingerprint
    prints = {t.fingerprint for t in (byte_bpe(), byte_bpe(440), word_piece(), meta_bpe())}
    assert len(prints) == 4


def test_a_model_without_limit_has_none() -> None:
    hf = gpt2_tokenizer()
    assert Tokenizer.from_hf(hf).max_length == hf.model_max_length
    assert byte_bpe().max_length is None


def test_a_slow_tokenizer_is_refused() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(
        TokenizerError, match=r"mine: got a slow tokenizer \(Slow\), expected a fast"
    ):
        Tokenizer.from_hf(Slow(), name="mine")


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"its files cannot be loaded, see tokenizer\.json and tok"
    ):
        Tokenizer.from_pretrained(tmp_path)


def test_a_folder_is_read(tmp_path: Path) -> None:
    bert_tokenizer().save_pretrained(tmp_path)
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    assert (
        tokenizer.add_special_tokens(tokenizer.encode(LINES[0]))
        == bert_tokenizer()(LINES[0])["input_ids"]
    )


def test_a_tokenizer_that_rewrites_the_text_between_its_specials_is_refused() -> None:
    rust = Rust(models.WordLevel({"a": 0, "[UNK]": 1, "<s>": 2}, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    rust.post_processor = processors.TemplateProcessing("<s>", special_tokens=[("<s>", 2)])
    with pytest.raises(TokenizerError, match="does not contain its plain ids"):
        Tokenizer(rust, name="odd")
