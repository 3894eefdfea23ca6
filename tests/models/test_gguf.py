"""A GGUF file scores as the model that it was made from, and what is not understood is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuseprompt.errors import MissingModelError, ModelError
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.hub import load
from tests.offline.test_gguf import Setting, pack_float, pack_gguf
from tests.text.tiny import LINES, byte_bpe, meta_bpe
from tests.tiny import llama, llama_module

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))


def tensors() -> dict[str, Any]:
    """Return the tiny Llama's weights under GGUF's names, rotary rows interleaved."""
    found = {}
    for name, weight in llama_module().state_dict().items():
        array = weight.numpy().astype(np.float32)
        parts = name.removeprefix("model.").split(".")
        if parts[0] == "layers":
            short = NAMES[".".join(parts[2:-1])]
            if short in ("attn_q", "attn_k"):
                heads, (rows, columns) = 2, array.shape
                halves = array.reshape(heads, 2, rows // heads // 2, columns)
                array = halves.swapaxes(1, 2).reshape(rows, columns)
            found[f"blk.{parts[1]}.{short}.weight"] = pack_float(array)
        elif parts[0] == "embed_tokens":
            found["token_embd.weight"] = pack_float(array)
        elif parts[0] == "norm":
            found["output_norm.weight"] = pack_float(array)
        else:
            found["output.weight"] = pack_float(array)
    return found


def settings(**more: Setting) -> dict[str, Setting]:
    """Return the header of the tiny Llama with its byte-level vocabulary."""
    model = json.loads(byte_bpe()._backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    config = llama_module().config
    end = tokens.index("<|endoftext|>")
    return {
        "general.architecture": "llama",
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.context_length": config.max_position_embeddings,
        "llama.block_count": config.num_hidden_layers,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if i == end else 1 for i in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(m) for m in model["merges"]],
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": True,
        **more,
    }


def write(path: Path, header: dict[str, Setting]) -> Path:
    path.write_bytes(pack_gguf(header, tensors()))
    return path


def test_it_scores_as_the_model_it_was_made_from(tmp_path: Path) -> None:
    file = write(tmp_path / "tiny.gguf", settings())
    loaded = load(file, device="cpu")
    assert isinstance(loaded, CausalLM)
    assert loaded.name == str(file)
    assert loaded.max_length == llama().max_length
    for text in LINES[:5]:
        ids = loaded.tokenizer.encode(text)
        assert loaded.tokenizer.frame(ids) == llama().tokenizer.frame(ids)
        assert ids == llama().tokenizer.encode(text)
        torch.testing.assert_close(loaded.nll([ids], [1])[0], llama().nll([ids], [1])[0])
    before = [p.stat().st_mtime_ns for p in sorted((tmp_path / "cache").rglob("*.json"))]
    load(file, device="cpu")
    assert [p.stat().st_mtime_ns for p in sorted((tmp_path / "cache").rglob("*.json"))] == before


def test_its_chat_template_is_kept(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    header = settings(**{"tokenizer.chat_template": template})
    lm = load(write(tmp_path / "chat.gguf", header), device="cpu")
    assert isinstance(lm, CausalLM)
    assert lm.tokenizer.decode(lm.instructed("a photo").begin_ids).endswith("a photo ")


def test_pieces_are_merged_as_their_scores_say(tmp_path: Path) -> None:
    model = json.loads(meta_bpe()._backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    from fuseprompt.models import gguf
    from fuseprompt.offline.gguf import GgufFile

    kinds = [2 if t == "<unk>" else 6 if t.startswith("<0x") else 1 for t in tokens]
    file = GgufFile(pack_gguf({"tokenizer.ggml.token_type": kinds}, {}))
    file.settings["tokenizer.ggml.scores"] = [-float(i) for i in range(len(tokens))]
    built = gguf._build_pieces(file, tokens, [str(k) for k in kinds])
    for text in (*LINES[:8], "caf\u00e9 \U0001f44d"):
        assert built.encode(text).ids == meta_bpe().encode(text)
        assert built.decode(built.encode(text).ids) == text


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"general.architecture": "falcon"}, "holds a 'falcon' model; only 'llama'"),
        ({"tokenizer.ggml.model": "bert"}, "vocabulary of kind 'bert'"),
        ({"tokenizer.ggml.pre": "deepseek"}, "cuts words as 'deepseek'"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, more: dict[str, Setting], match: str
) -> None:
    with pytest.raises(ModelError, match=match):
        load(write(tmp_path / "odd.gguf", settings(**more)), device="cpu")
    assert not list((tmp_path / "cache").rglob("config.json"))


def test_a_cut_file_and_no_file(tmp_path: Path) -> None:
    file = write(tmp_path / "cut.gguf", settings())
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(ModelError, match="cut off or damaged"):
        load(file, device="cpu")
    (tmp_path / "text.gguf").write_text("hello, this is no model")
    with pytest.raises(ModelError, match="Expected a GGUF file of version 3"):
        load(tmp_path / "text.gguf", device="cpu")
    with pytest.raises(MissingModelError):
        load(tmp_path / "none.gguf", device="cpu")
