"""Sentence vectors: equal to a plain forward pass with a mask, however the texts are batched."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Rust
from torch.nn.functional import normalize
from transformers import BertModel

from fuseprompt.errors import ModelError
from fuseprompt.models.base import TextModel
from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.models.hub import load
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer
from tests.text.tiny import LINES
from tests.tiny import (
    bert_config,
    bert_module,
    bert_tokenizer,
    save_folder,
    seeded,
    sentence_encoder,
)

TEXTS = [*LINES[:6], "a", "", "the museum"]


def test_vectors_are_masked_means_of_a_padded_forward_pass() -> None:
    batch = bert_tokenizer()(TEXTS, padding=True, return_tensors="pt")
    hidden = bert_module()(**batch).last_hidden_state.detach()
    mask = batch["attention_mask"][..., None]
    want = normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    torch.testing.assert_close(sentence_encoder().encode(TEXTS), want, atol=1e-5, rtol=1e-5)


def test_a_batch_of_one_is_a_batch_of_many() -> None:
    many = sentence_encoder().encode(TEXTS)
    alone = torch.cat([sentence_encoder().encode([t]) for t in TEXTS])
    torch.testing.assert_close(many, alone, atol=1e-5, rtol=1e-5)


def shapes_read(model: Any, texts: list[str]) -> list[tuple[int, ...]]:
    """Return the shapes of the ids of each pass over texts."""
    seen: list[tuple[int, ...]] = []
    layer = model.module.get_input_embeddings()
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
    model.encode(texts)
    handle.remove()
    return seen


def test_few_texts_of_like_length_are_one_pass() -> None:
    rows = [len(ids) for ids in sentence_encoder().tokenizer.encode_batch(TEXTS)]
    assert len(set(rows)) > 2
    assert sentence_encoder().can_pad
    assert shapes_read(sentence_encoder(), TEXTS) == [(len(rows), max(rows) + 2)]


def test_a_body_that_reads_its_padding_gets_none() -> None:
    class Blind(BertModel):
        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            return super().forward(input_ids=input_ids)

    body = seeded(2, lambda: Blind(bert_config()))
    model = SentenceEncoder(body, Tokenizer.from_hf(bert_tokenizer()), name="blind")
    assert not model.can_pad
    assert len(shapes_read(model, TEXTS)) > 1
    torch.testing.assert_close(model.encode(TEXTS), sentence_encoder().encode(TEXTS))


def test_the_first_position_is_pooled_where_the_folder_says_so(tmp_path: Path) -> None:
    save_folder(tmp_path, bert_module(), bert_tokenizer())
    assert not SentenceEncoder.load(tmp_path).pools_first
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    )
    loaded = SentenceEncoder.load(tmp_path)
    assert loaded.pools_first
    ids = bert_tokenizer()(TEXTS[0], return_tensors="pt")["input_ids"]
    want = normalize(bert_module()(input_ids=ids).last_hidden_state[:, 0].detach(), dim=-1)
    torch.testing.assert_close(loaded.encode(TEXTS[:1]), want, atol=1e-5, rtol=1e-5)


def test_the_protocol_is_kept_and_nothing_trains() -> None:
    model = sentence_encoder()
    assert isinstance(model, TextModel)
    assert not model.outputs(PaddedIds.from_lists([[2, 3]])).requires_grad
    assert not any(p.requires_grad for p in bert_module().parameters())


@pytest.mark.offline
def test_the_offline_encoder_knows_what_belongs_together() -> None:
    from fuseprompt.offline.manifest import offline_folder

    encoder = SentenceEncoder.load(offline_folder("offline:sentence"))
    cat, kitten, invoice = encoder.encode(
        ["A cat sleeps.", "A kitten is asleep.", "Please pay this invoice by Friday."]
    )
    assert cat @ kitten > cat @ invoice + 0.3
    assert isinstance(encoder.tokenizer, Tokenizer)


def save_encoder(folder: Path, files: dict[str, Any], tokenizer: Any = None) -> Path:
    """Write a folder of sentence-transformers, whose pooling is the second module."""
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    save_folder(folder, bert_module(), tokenizer or bert_tokenizer())
    for name, content in {"modules.json": modules, **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def named(kind: str, path: str, package: str = "sentence_transformers.models") -> dict[str, str]:
    return {"path": path, "type": f"{package}.{kind}"}


BODY, MEAN = named("Transformer", ""), {"1_Pooling/config.json": {"pooling_mode": "mean"}}
WHOLE = "config_sentence_transformers.json"


@pytest.mark.parametrize("path", ["2_Pooling", "pool", "1_Pooling"])
def test_pooling_is_read_where_modules_json_says(tmp_path: Path, path: str) -> None:
    first = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    files = {
        **MEAN,  # left behind by another export
        "modules.json": [BODY, named("Pooling", path), named("Normalize", "2_Normalize")],
        f"{path}/config.json": first,
    }
    assert SentenceEncoder.load(save_encoder(tmp_path, files)).pools_first


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({}, r"names '1_Pooling', which has no config\.json"),
        ({**MEAN, "modules.json": [BODY, named("Pooling", "3_P")]}, "names '3_P', which has no"),
        ({"1_Pooling/config.json": {"pooling_mode_mean_tokens": False}}, r"pools by \[\]"),
        ({"1_Pooling/config.json": {"pooling_mode_cls_token": True}}, r"\['cls_token', 'mean_tok"),
        ({"1_Pooling/config.json": {"pooling_mode": "lasttoken"}}, r"pools by \['lasttoken'\]"),
        ({**MEAN, "modules.json": [BODY]}, r"has \['Transformer'\] after the body"),
        (
            {**MEAN, "modules.json": [named("Transformer", "0_T"), named("Pooling", "1_Pooling")]},
            "has the body in '0_T'; expected it in the folder",
        ),
        (
            {**MEAN, "modules.json": [BODY, named("Pooling", "1_Pooling", "my.own")]},
            r"has \['my\.own\.Pooling'\] after the body",
        ),
        (
            {**MEAN, WHOLE: {"prompts": {"q": "query: "}, "default_prompt_name": "q"}},
            r"puts 'query: ' before every text \(default_prompt_name\)",
        ),
        (
            {**MEAN, WHOLE: {"prompts": {"a": "", "b": "Read this. "}, "default_prompt_name": "b"}},
            "puts 'Read this. ' before",
        ),
        ({**MEAN, WHOLE: {"truncate_dim": 8}}, r"cuts vectors to 8 numbers"),
        (
            {**MEAN, "sentence_bert_config.json": {"tokenizer_args": {"use_fast": False}}},
            r"has \['tokenizer_args'\]",
        ),
    ],
)
def test_settings_that_would_change_vectors_are_refused(
    tmp_path: Path, files: dict[str, Any], match: str
) -> None:
    with pytest.raises(ModelError, match=match):
        load(save_encoder(tmp_path, files), device="cpu")


@pytest.mark.parametrize("name", ["sentence_bert_config.json", "sentence_roberta_config.json"])
def test_lower_case_is_refused_unless_the_tokenizer_makes_it(tmp_path: Path, name: str) -> None:
    files = {**MEAN, name: {"max_seq_length": 16, "do_lower_case": True}}
    loaded = SentenceEncoder.load(save_encoder(tmp_path / "lower", files))
    assert loaded.max_length == 16
    rust = Rust.from_str(bert_tokenizer().backend_tokenizer.to_str())
    rust.normalizer = None
    cased = type(bert_tokenizer())(tokenizer_object=rust, unk_token="[UNK]", pad_token="[PAD]")
    assert cased.encode("A Cat") != cased.encode("a cat")
    with pytest.raises(ModelError, match="has do_lower_case, but the tokenizer keeps capitals"):
        SentenceEncoder.load(save_encoder(tmp_path / "cased", files, cased))


@pytest.mark.parametrize(
    ("whole", "notes"),
    [
        ({"prompts": {"q": "query: "}, "default_prompt_name": None}, ()),
        ({"prompts": {"q": ""}, "default_prompt_name": "q", "similarity_fn_name": "cosine"}, ()),
        ({"similarity_fn_name": "dot"}, ("Compared by cosine, not by its own 'dot'.",)),
        ({"similarity_fn_name": "euclidean"}, ("Compared by cosine, not by its own 'euclidean'.",)),
    ],
)
def test_settings_that_change_no_vector_are_accepted(
    tmp_path: Path, whole: dict[str, Any], notes: tuple[str, ...]
) -> None:
    loaded = SentenceEncoder.load(save_encoder(tmp_path, {**MEAN, WHOLE: whole}))
    assert loaded.notes == notes
    torch.testing.assert_close(loaded.encode(TEXTS), sentence_encoder().encode(TEXTS))
