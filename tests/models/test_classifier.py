"""Class logits: the family's own pipeline is the truth."""

from pathlib import Path

import pytest
import torch
from transformers import BertForSequenceClassification, pipeline

from fuseprompt.errors import ModelError
from fuseprompt.models.base import TextModel
from fuseprompt.models.encoders import Classifier
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer
from tests.text.tiny import LINES
from tests.tiny import (
    LABELS,
    MAX_LENGTH,
    assert_same_weights,
    bert_config,
    bert_tokenizer,
    classifier,
    classifier_module,
    roberta_module,
    save_folder,
    seeded,
)

TEXTS = [*LINES[:6], "a", "the museum"]


def ids_of(model: Classifier, texts: list[str]) -> PaddedIds:
    return PaddedIds.from_lists(
        [model.tokenizer.add_special_tokens(model.tokenizer.encode(t)) for t in texts]
    )


def test_logits_are_those_of_a_plain_padded_forward_pass() -> None:
    batch = bert_tokenizer()(TEXTS, padding=True, return_tensors="pt")
    want = classifier_module()(**batch).logits.detach()
    got = classifier().outputs(ids_of(classifier(), TEXTS))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert not got.requires_grad


def test_probabilities_are_those_of_the_pipeline() -> None:
    pipe = pipeline("text-classification", classifier_module(), tokenizer=bert_tokenizer())
    got = classifier().outputs(ids_of(classifier(), TEXTS)).softmax(-1)
    for text, row in zip(TEXTS, got, strict=True):
        scores = {d["label"]: d["score"] for d in pipe(text, top_k=None)}
        assert {n: row[i].item() for i, n in enumerate(LABELS)} == pytest.approx(scores, abs=1e-5)


def test_labels_are_in_the_order_of_the_logits() -> None:
    assert classifier().labels == LABELS
    config = bert_config(id2label={2: "c", 0: "a", 1: "b"}, label2id={"c": 2, "a": 0, "b": 1})
    module = seeded(0, lambda: BertForSequenceClassification(config))
    assert Classifier(module, Tokenizer.from_hf(bert_tokenizer())).labels == ("a", "b", "c")


def test_roberta_has_fewer_positions_than_rows() -> None:
    tokenizer = Tokenizer.from_hf(bert_tokenizer())
    tokenizer.max_length = None
    model = Classifier(roberta_module(), tokenizer)
    assert model.max_length == MAX_LENGTH
    longest = PaddedIds(torch.full((1, MAX_LENGTH), 9), torch.tensor([MAX_LENGTH]))
    assert model.outputs(longest).isfinite().all()


def test_a_regressor_is_refused() -> None:
    module = seeded(0, lambda: BertForSequenceClassification(bert_config(num_labels=1)))
    with pytest.raises(ModelError, match="stars: a classifier needs at least two labels"):
        Classifier(module, Tokenizer.from_hf(bert_tokenizer()), name="stars")


def test_a_saved_folder_gives_the_same_numbers(tmp_path: Path) -> None:
    save_folder(tmp_path, classifier_module(), bert_tokenizer())
    loaded = Classifier.load(tmp_path)
    assert isinstance(loaded, TextModel)
    assert loaded.labels == LABELS
    assert_same_weights(loaded.module, classifier_module())
    ids = ids_of(loaded, TEXTS)
    torch.testing.assert_close(loaded.outputs(ids), classifier().outputs(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.offline
def test_the_offline_classifier_tells_good_from_bad() -> None:
    from fuseprompt.offline.manifest import offline_folder

    model = Classifier.load(offline_folder("offline:sentiment"))
    assert model.labels == ("negative", "neutral", "positive")
    best = model.outputs(
        ids_of(model, ["This is wonderful, I love it!", "What a horrible, ugly mess."])
    ).argmax(-1)
    assert best.tolist() == [2, 0]
