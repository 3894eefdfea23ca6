"""Sentence vectors: equal to a plain forward pass with a mask, however the texts are batched."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from fuseprompt.models.base import TextModel
from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer
from tests.text.tiny import LINES
from tests.tiny import bert_module, bert_tokenizer, save_folder, sentence_encoder

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


def test_the_first_position_is_pooled_where_the_folder_says_so(tmp_path: Path) -> None:
    save_folder(tmp_path, bert_module(), bert_tokenizer())
    assert not SentenceEncoder.load(tmp_path).pools_first
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_cls_token": True})
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
