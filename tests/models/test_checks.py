"""The checks at load time: what cannot work is refused, with a sentence that says what to do."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Rust
from tokenizers import processors
from transformers import BertModel, ViTConfig, ViTModel

from fuseprompt.errors import FuseError, ModelError, TokenizerError
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.models.hub import load
from fuseprompt.models.image_text import ClipModel
from fuseprompt.models.pretrained import check_tokenizer
from fuseprompt.text.tokenizer import Tokenizer
from tests.text.tiny import byte_bpe
from tests.tiny import (
    bert_config,
    bert_module,
    bert_tokenizer,
    classifier_module,
    clip_module,
    clip_processor,
    clip_tokenizer,
    gpt2_module,
    gpt2_tokenizer,
    save_folder,
    seeded,
)


def fresh(module: Any) -> Any:
    """Return a copy of a model with weights of its own."""
    copied = type(module)(copy.deepcopy(module.config))
    copied.load_state_dict(module.state_dict())
    return copied.eval()


@pytest.mark.parametrize(
    "name", ["encoder.layer.1.attention.self.key.weight", "encoder.layer.0.output.dense.bias"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_weight_that_is_no_number_is_named(
    name: str, value: float | None, tmp_path: Path
) -> None:
    """Keys that are NaN count as masked in some attentions, and the outputs stay finite."""
    folder = save_folder(tmp_path, bert_module(), bert_tokenizer())
    tensors = load_file(folder / "model.safetensors")
    if value is None:  # Weights of whole numbers are what a quantisation without scales leaves.
        tensors[name] = tensors[name].to(torch.int32)
    else:
        tensors[name] = torch.full_like(tensors[name], value)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"(NaN or infinity|whole numbers)(, .*Copy|, such as)"):
        load(folder, device="cpu")


def test_a_special_token_twice_before_a_text_is_refused() -> None:
    rust = Rust.from_str(byte_bpe()._backend.to_str())
    end = "<|endoftext|>"
    rust.post_processor = processors.TemplateProcessing(
        f"{end} {end} $A", special_tokens=[(end, rust.token_to_id(end))]
    )
    with pytest.raises(TokenizerError, match=r"twice: .*before a text, the same special token"):
        check_tokenizer(Tokenizer(rust, name="twice"))


def test_a_vocabulary_larger_than_the_matrix_is_refused() -> None:
    module = seeded(0, lambda: BertModel(bert_config()))
    with pytest.raises(
        ModelError, match=r"mine: the tokenizer has \d+ tokens, but the model's matrix only 300"
    ):
        SentenceEncoder(module, Tokenizer.from_hf(gpt2_tokenizer()), name="mine")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_embedding_that_is_no_number_is_refused(bad: float) -> None:
    module = fresh(bert_module())
    module.get_input_embeddings().weight.data[7, 3] = bad
    with pytest.raises(ModelError, match=r"1 rows .* NaN or infinity \(first: id 7\)"):
        SentenceEncoder(module, Tokenizer.from_hf(bert_tokenizer()), name="mine")


@pytest.mark.parametrize("kind", ["lm", "classifier", "sentence", "clip text", "clip picture"])
def test_weights_with_nan_are_refused(kind: str, tmp_path: Path) -> None:
    parts: dict[str, tuple[Any, ...]] = {
        "lm": (gpt2_module(), gpt2_tokenizer(), "transformer.h.1.mlp.c_fc.weight"),
        "classifier": (classifier_module(), bert_tokenizer(), "classifier.bias"),
        "sentence": (bert_module(), bert_tokenizer(), "encoder.layer.0.output.dense.weight"),
        "clip text": (clip_module(), clip_tokenizer(), "text_projection.weight"),
        "clip picture": (clip_module(), clip_tokenizer(), "visual_projection.weight"),
    }
    module, tokenizer, name = parts[kind]
    module = fresh(module)
    module.get_parameter(name).data.view(-1)[3 if "bias" not in name else 0] = float("nan")
    processor = clip_processor() if "clip" in kind else None
    save_folder(tmp_path, module, tokenizer, processor)
    with pytest.raises(ModelError, match=r"NaN or infinity, .* Copy or convert them again"):
        load_and_look(tmp_path)


def load_and_look(folder: Path) -> None:
    """Load a folder, and show the model a picture if it takes one."""
    loaded = load(folder, device="cpu")
    if isinstance(loaded, ClipModel):
        loaded.image_features([Image.new("RGB", (40, 40), "red")])


def test_a_model_without_token_embeddings_is_refused() -> None:
    module = ViTModel(
        ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=32,
            patch_size=8,
        )
    )
    with pytest.raises(ModelError, match="pictures: ViTModel has no layer that embeds token ids"):
        SentenceEncoder(module, Tokenizer.from_hf(bert_tokenizer()), name="pictures")


def test_an_image_model_in_a_folder_is_refused(tmp_path: Path) -> None:
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=32,
        patch_size=8,
    )
    ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"an image model .* that reads no text"):
        load(tmp_path, device="cpu")


def test_two_classes_of_one_name_are_refused() -> None:
    from transformers import BertForSequenceClassification

    config = bert_config(id2label={0: "good", 1: "Good", 2: "bad"})
    module = seeded(0, lambda: BertForSequenceClassification(config))
    with pytest.raises(ModelError, match=r"more than one class is called \['good'\]"):
        Classifier(module, Tokenizer.from_hf(bert_tokenizer()), name="mine")


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        (
            "1_Pooling/config.json",
            '{"pooling_mode_max_tokens": true, "pooling_mode_mean_tokens": false}',
            r"pools by \['max_tokens'\]; expected mean_tokens or cls_token",
        ),
        (
            "1_Pooling/config.json",
            '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}',
            "expected mean_tokens or cls_token alone",
        ),
        (
            "modules.json",
            '[{"type": "sentence_transformers.models.Dense"}]',
            r"has \['Dense'\] after the body",
        ),
    ],
)
def test_pooling_that_cannot_be_done_is_refused(
    tmp_path: Path, file: str, content: str, match: str
) -> None:
    save_folder(tmp_path, bert_module(), bert_tokenizer())
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(content)
    with pytest.raises(ModelError, match=match):
        SentenceEncoder.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "first"), [('{"pooling_mode": "cls"}', True), ('{"pooling_mode": "mean"}', False)]
)
def test_pooling_as_newer_folders_write_it(tmp_path: Path, content: str, first: bool) -> None:
    save_folder(tmp_path, bert_module(), bert_tokenizer())
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(content)
    assert SentenceEncoder.load(tmp_path).pools_first == first


def test_a_slow_tokenizer_is_replaced_by_the_folder_s_tokenizer_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    class Slow:
        is_fast = False

    bert_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: Slow())
    loaded = Tokenizer.from_pretrained(tmp_path)
    assert loaded.encode("a cat") == Tokenizer.from_hf(bert_tokenizer()).encode("a cat")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(FuseError, match="slow tokenizer"):
        Tokenizer.from_pretrained(tmp_path)
