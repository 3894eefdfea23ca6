"""The questions at load time: what is unusual is noted, what cannot work is refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer as Rust
from tokenizers import processors
from torch import nn
from transformers import BertModel, GPT2LMHeadModel, PreTrainedTokenizerFast, ViTConfig, ViTModel

from fuseprompt import cache
from fuseprompt.errors import FuseError, ModelError, TokenizerError
from fuseprompt.models import selftest
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.classifier import Classifier
from fuseprompt.models.hub import load
from fuseprompt.models.image_text import ClipModel
from fuseprompt.models.pretrained import Pretrained
from fuseprompt.models.selftest import HOSTILE, check_tokenizer
from fuseprompt.models.sentence import SentenceEncoder
from fuseprompt.text.tokenizer import Tokenizer
from tests.text.tiny import byte_bpe, end_of_word_bpe, meta_bpe, word_piece
from tests.tiny import (
    bert_config,
    bert_module,
    bert_tokenizer,
    classifier_module,
    clip,
    clip_module,
    clip_processor,
    clip_tokenizer,
    gpt2,
    gpt2_module,
    gpt2_tokenizer,
    save_folder,
    seeded,
    sentence_encoder,
)


def fresh(module: Any) -> Any:
    """Return a copy of a model with weights of its own."""
    copied = type(module)(copy.deepcopy(module.config))
    copied.load_state_dict(module.state_dict())
    return copied.eval()


@pytest.mark.parametrize(
    ("tokenizer", "keeps_blank", "joins"),
    [(byte_bpe, True, False), (word_piece, False, True), (meta_bpe, True, False)],
    ids=["byte-level", "word-piece", "meta-symbol"],
)
def test_blanks_and_clean_up_are_found(tokenizer: Any, keeps_blank: bool, joins: bool) -> None:
    facts = check_tokenizer(tokenizer())
    assert facts.keeps_leading_blank == keeps_blank
    assert facts.joins_punctuation == joins
    assert facts.num_tokens == tokenizer().vocab_size


def test_what_does_not_survive_is_found() -> None:
    assert check_tokenizer(byte_bpe()).changed == ()
    assert {"Ab aB", "a  b", " a"} <= set(check_tokenizer(word_piece()).changed)
    assert set(check_tokenizer(end_of_word_bpe()).changed) <= set(HOSTILE)


def test_a_tokenizer_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "notes_dir", lambda: tmp_path / "notes")
    first = check_tokenizer(word_piece())
    asked: list[Tokenizer] = []
    plain = selftest._ask
    monkeypatch.setattr(selftest, "_ask", lambda t: asked.append(t) or plain(t))
    assert check_tokenizer(word_piece()) == first
    assert asked == []
    (file,) = (tmp_path / "notes").iterdir()
    file.write_text(file.read_text().replace('"num_added"', '"other"'))
    assert check_tokenizer(word_piece()) == first  # an unreadable note: asked again
    assert len(asked) == 1
    check_tokenizer(byte_bpe())
    assert len(asked) == 2


def test_a_special_token_twice_before_a_text_is_refused() -> None:
    rust = Rust.from_str(byte_bpe()._backend.to_str())
    end = "<|endoftext|>"
    rust.post_processor = processors.TemplateProcessing(
        f"{end} {end} $A", special_tokens=[(end, rust.token_to_id(end))]
    )
    with pytest.raises(TokenizerError, match=r"twice: .*before a text, the same special token"):
        check_tokenizer(Tokenizer(rust, name="twice"))


def test_notes_say_what_is_unusual() -> None:
    assert gpt2().notes == ()
    assert any("after a blank" in note for note in sentence_encoder().notes)
    assert any("before punctuation" in note for note in sentence_encoder().notes)
    assert any("do not survive" in note for note in clip().notes)


def test_rows_without_a_token_zero_rows_and_scale_are_noted() -> None:
    class Scaled(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) * 3.0

    module = fresh(gpt2_module())
    size = len(gpt2_tokenizer())
    layer = Scaled(size + 7, 16)
    layer.weight.data.normal_()
    layer.weight.data[5] = 0.0
    module.set_input_embeddings(layer)
    notes = Pretrained(module, Tokenizer.from_hf(gpt2_tokenizer()), name="odd").notes
    assert "7 rows of its matrix have no token; they are never proposed." in notes
    assert "1 rows of its matrix are zero." in notes
    assert "Its embedding layer multiplies the matrix by 3." in notes


def test_added_tokens_are_noted() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Rust.from_str(byte_bpe()._backend.to_str()), eos_token="<|endoftext|>"
    )
    tokenizer.add_tokens(["zebra"])
    module = seeded(0, lambda: GPT2LMHeadModel(copy.deepcopy(gpt2_module().config)))
    module.resize_token_embeddings(len(tokenizer))
    notes = CausalLM(module, Tokenizer.from_hf(tokenizer)).notes
    assert "1 tokens were added to its tokenizer and are plain text." in notes


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
            '{"pooling_mode_max_tokens": true}',
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
