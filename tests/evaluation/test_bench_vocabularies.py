"""The vocabularies of benchmarks: built from their files, framed as their families frame a text."""

import json

import pytest
from tokenizers import Tokenizer

from fuseprompt.errors import MissingModelError
from fuseprompt.evaluation.bench_vocabularies import (
    build_gpt2,
    build_vocabularies,
    load_vocabularies,
)
from tests.text.tiny import byte_bpe, end_of_word_bpe


def test_gpt2_is_built_from_its_two_files():
    merges = b"#version: 0.2\n\xc4\xa0 t\nh e\n\xc4\xa0t he\n"
    tokens = ["h", "e", "t", "\u0120", "\u0120t", "he", "\u0120the", "<|endoftext|>"]
    text = build_gpt2(json.dumps({t: i for i, t in enumerate(tokens)}).encode(), merges)
    assert Tokenizer.from_str(text).encode(" the the").ids == [6, 6]


def test_roberta_is_gpt2_with_other_ids_and_a_frame():
    ours, clip = byte_bpe(), end_of_word_bpe()
    built = build_vocabularies(ours._backend.to_str(), clip._backend.to_str())
    ids = built.gpt2.encode("An image of a cat")
    assert ids == ours.encode("An image of a cat")
    assert built.roberta.encode("An image of a cat") == [i + 4 for i in ids]
    assert built.roberta.frame(ids) == [0, *ids, 2]
    assert built.roberta.decode([i + 4 for i in ids]) == "An image of a cat"
    assert built.roberta.padding.token_id == 1
    assert built.clip.max_length == 77


def test_missing_files_name_the_way_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    with pytest.raises(MissingModelError, match=r"gpt2\.json\. Run it with --prepare once"):
        load_vocabularies()
