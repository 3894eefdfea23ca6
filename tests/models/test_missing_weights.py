"""A model is refused unless all weights that its outputs use are in its files.

The damage is done to the files of tiny models, as a cut download, a wrong export or a training
framework does it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertForMaskedLM, LlamaForCausalLM

from fuseprompt.cli.main import main
from fuseprompt.errors import ModelError
from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.models.hub import load
from tests.models.test_gguf import settings, tensors, write
from tests.tiny import (
    assert_same_weights,
    bert_config,
    bert_module,
    bert_tokenizer,
    classifier_module,
    clip_module,
    clip_processor,
    clip_tokenizer,
    gpt2_module,
    gpt2_tokenizer,
    llama_module,
    llama_tokenizer,
    roberta_module,
    save_folder,
    seeded,
)

Parts = tuple[Callable[[], Any], ...]
State = dict[str, Tensor]

LLAMA: Parts = (llama_module, llama_tokenizer)
GPT2: Parts = (gpt2_module, gpt2_tokenizer)
BERT: Parts = (bert_module, bert_tokenizer)
CLASSIFIER: Parts = (classifier_module, bert_tokenizer)
ROBERTA: Parts = (roberta_module, bert_tokenizer)
CLIP: Parts = (clip_module, clip_tokenizer, clip_processor)


def without(*parts: str) -> Callable[[State], State]:
    """Return what leaves out the weights whose name has one of these parts."""
    return lambda state: {n: w for n, w in state.items() if not any(part in n for part in parts)}


def with_prefix(prefix: str) -> Callable[[State], State]:
    """Return what puts a prefix before every name."""
    return lambda state: {prefix + name: weight for name, weight in state.items()}


def cut_rows(name: str) -> Callable[[State], State]:
    """Return what leaves half the rows of a weight."""
    return lambda state: {n: w[: len(w) // 2].clone() if n == name else w for n, w in state.items()}


def save_damaged(folder: Path, parts: Parts, damage: Callable[[State], State]) -> Path:
    """Write a tiny model's folder with other weights than its own."""
    save_folder(folder, *(part() for part in parts))
    file = folder / "model.safetensors"
    before = load_file(file)
    after = damage(before)
    assert after.keys() != before.keys() or any(after[n].shape != before[n].shape for n in after)
    save_file(after, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("parts", "damage", "match"),
    [
        (LLAMA, without("layers.1."), r"lack 9 of the weights .*: model\.layers\.1\..* and 5 more"),
        (LLAMA, without("lm_head"), r"lack 1 of the weights .*: lm_head\.weight\. Copy"),
        (LLAMA, without("embed_tokens"), r"lack 1 .*: model\.embed_tokens\.weight\."),
        (GPT2, without("h.0.attn.c_attn.bias"), r"lack 1 .*: transformer\.h\.0\.attn\.c_attn\.bi"),
        (BERT, without("position_embeddings"), r"lack 1 .*: embeddings\.position_embeddings\.we"),
        (CLASSIFIER, without("classifier."), r"lack 2 .*: classifier\.bias, classifier\.weight\."),
        (CLASSIFIER, without("pooler"), r"lack 2 .*: bert\.pooler\.dense\.bias, bert\.pooler"),
        (ROBERTA, without("out_proj"), r"lack 2 .*: classifier\.out_proj\.bias, classifier\.out"),
        (CLIP, without("text_projection"), r"lack 1 .*: text_projection\.weight\."),
        (CLIP, without("vision_model.encoder.layers.1.mlp"), r"lack 4 .*: vision_model\."),
        (LLAMA, with_prefix("module."), r"lack 21 .* They hold 21 of other names, such as 'modul"),
        (BERT, with_prefix("student.bert."), r"of other names, such as 'student\.bert\.embeddin"),
        (CLIP, with_prefix("net."), r"of other names, such as 'net\.logit_scale'"),
        (LLAMA, cut_rows("lm_head.weight"), r"lm_head\.weight of shape \(\d+, 16\) in place of \("),
        (CLASSIFIER, cut_rows("classifier.bias"), r"classifier\.bias of shape \(1,\) in place of"),
    ],
)
def test_a_model_without_weights_that_it_uses_is_refused(
    tmp_path: Path, parts: Parts, damage: Callable[[State], State], match: str
) -> None:
    folder = save_damaged(tmp_path / "cut", parts, damage)
    with pytest.raises(ModelError, match=rf"cut: its files {match}|cut: its files lack .*{match}"):
        load(folder, device="cpu")


@pytest.mark.parametrize(
    ("parts", "damage"),
    [
        (BERT, without("pooler")),
        (CLIP, without("logit_scale")),
        (BERT, cut_rows("pooler.dense.weight")),
    ],
)
def test_weights_that_no_output_uses_may_be_missing(
    tmp_path: Path,
    parts: Parts,
    damage: Callable[[State], State],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The library leaves some missing weights as it finds the memory.
    def unwritten(like: Tensor, **more: Any) -> Tensor:
        return torch.full_like(like, float("nan") if like.is_floating_point() else 0, **more)

    monkeypatch.setattr(torch, "empty_like", unwritten)
    whole: Any = load(save_folder(tmp_path / "whole", *(part() for part in parts)), device="cpu")
    cut: Any = load(save_damaged(tmp_path / "cut", parts, damage), device="cpu")
    ids = cut._sample()
    torch.testing.assert_close(cut._compute(ids), whole._compute(ids))
    assert not any(weight.requires_grad for weight in cut.module.parameters())


def test_the_head_of_a_masked_language_model_is_no_part_of_its_sentence_vectors(
    tmp_path: Path,
) -> None:
    module = seeded(0, lambda: BertForMaskedLM(bert_config()))
    loaded = load(save_folder(tmp_path, module, bert_tokenizer()), device="cpu")
    assert isinstance(loaded, SentenceEncoder)


@pytest.mark.parametrize("kept", ["embed_tokens", "lm_head"])
def test_tied_weights_are_there_under_either_name(tmp_path: Path, kept: str) -> None:
    config = llama_module().config.__class__(**llama_module().config.to_dict())
    config.tie_word_embeddings = True
    module = seeded(0, lambda: LlamaForCausalLM(config))
    save_folder(tmp_path, module, llama_tokenizer())
    state = without("lm_head")(load_file(tmp_path / "model.safetensors"))
    if kept == "lm_head":
        state["lm_head.weight"] = state.pop("model.embed_tokens.weight")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded: Any = load(tmp_path, device="cpu")
    assert_same_weights(loaded.module, module)


def test_a_part_of_several_that_is_not_there_or_not_listed(tmp_path: Path) -> None:
    llama_module().save_pretrained(tmp_path, max_shard_size="8KB")
    llama_tokenizer().save_pretrained(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    lost = sorted(set(listed["weight_map"].values()))[-1]
    (tmp_path / lost).rename(tmp_path / "lost")
    with pytest.raises(ModelError, match="its files cannot be loaded"):
        load(tmp_path, device="cpu")
    listed["weight_map"] = {n: f for n, f in listed["weight_map"].items() if f != lost}
    index.write_text(json.dumps(listed))
    with pytest.raises(ModelError, match="its files lack"):
        load(tmp_path, device="cpu")


def test_sentence_vectors_that_need_a_dense_layer_are_refused_with_and_without_it(
    tmp_path: Path,
) -> None:
    save_folder(tmp_path, bert_module(), bert_tokenizer())
    kinds = ("Transformer", "Pooling", "Dense")
    modules = [{"path": "", "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"\['Dense'\]"):
        load(tmp_path, device="cpu")


@pytest.mark.parametrize("lost", ["blk.1.", "blk.0.attn_q", "output_norm"])
def test_a_gguf_file_without_tensors_that_it_uses_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "tests.models.test_gguf.tensors",
        lambda whole=tensors: {n: t for n, t in whole().items() if lost not in n},
    )
    file = write(tmp_path / "cut.gguf", settings())
    with pytest.raises(ModelError, match=r"cut\.gguf: its files lack \d of the weights"):
        load(file, device="cpu")


@pytest.mark.parametrize("count", [2, 7])
def test_one_part_of_a_split_gguf_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))
    name = f"tiny-00001-of-0000{count}.gguf"
    file = write(tmp_path / name, settings(**{"split.count": count, "split.no": 0}))
    with pytest.raises(ModelError, match=rf"part 1 of {count} .*gguf-split --merge"):
        load(file, device="cpu")
    load(write(tmp_path / "whole.gguf", settings(**{"split.count": 1})), device="cpu")


def test_doctor_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_damaged(tmp_path / "cut", LLAMA, without("layers.1."))
    assert main(["doctor", str(folder)]) == 1
    assert "cut: its files lack 9 of the weights" in capsys.readouterr().out
