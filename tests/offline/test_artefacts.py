"""The committed sentiment delta: names, sizes, and what it says about captions once merged."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fuseprompt.offline.manifest import offline_folder

PATH = Path(__file__).parents[2] / "src/fuseprompt/data/sentiment_delta.safetensors"
LINEARS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)


def test_the_delta_has_a_pair_for_every_linear_layer_and_the_head_in_full() -> None:
    delta = load_file(PATH)
    paths = [f"bert.encoder.layer.{i}.{name}" for i in range(6) for name in LINEARS]
    full = {f"{p}.{k}" for p in ("bert.pooler.dense", "classifier") for k in ("weight", "bias")}
    assert delta.keys() == full | {f"{p}.lora_{k}" for p in paths for k in "ab"}
    for path in paths:
        assert delta[f"{path}.lora_a"].shape[0] == 8
        assert delta[f"{path}.lora_b"].shape[1] == 8
        assert delta[f"{path}.lora_b"].any(), "an update of zero was never trained"
    assert delta["classifier.weight"].shape == (3, 384)
    assert PATH.stat().st_size <= 2_500_000


@pytest.mark.offline
def test_captions_get_the_label_that_a_reader_gives_them() -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = offline_folder("sentiment")
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    captions = {
        "An image of a beautiful happy dog.": "positive",
        "An image of a delicious cake.": "positive",
        "An image of a cat.": "neutral",
        "An image of a motorcycle on a road.": "neutral",
        "An image of a dirty, ugly dog.": "negative",
        "An image of a horrible accident.": "negative",
    }
    for caption, label in captions.items():
        with torch.inference_mode():
            logits = model(**tokenizer(caption, return_tensors="pt")).logits[0]
        assert model.config.id2label[int(logits.argmax())] == label, caption
