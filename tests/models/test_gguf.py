"""A GGUF file scores as the model that it was made from, and what is not understood is refused."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from numpy.typing import NDArray
from safetensors.numpy import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from fuseprompt.errors import MissingModelError, ModelError
from fuseprompt.models import gguf
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.hub import load, revision_of
from tests.text.tiny import LINES, byte_bpe, meta_bpe
from tests.tiny import llama, llama_module, seeded

Setting = int | float | str | bool | list[str] | list[int]


def pack_text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def pack_value(value: Setting) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + pack_text(value)
    inner = 8 if isinstance(value[0], str) else 5
    items = [pack_text(v) if isinstance(v, str) else struct.pack("<i", v) for v in value]
    return struct.pack("<IIQ", 9, inner, len(value)) + b"".join(items)


def pack_gguf(
    settings: dict[str, Setting], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]
) -> bytes:
    """Write a GGUF file; a tensor is NumPy shape, storage type, bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings))
    for name, value in settings.items():
        head += pack_text(name) + pack_value(value)
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        head += pack_text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", length) for length in reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    return head + b"\0" * (-len(head) % 32) + data


def pack_float(array: NDArray[np.float32]) -> tuple[tuple[int, ...], int, bytes]:
    return array.shape, 0, array.astype("<f4").tobytes()


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


def tensors(module: Any = None) -> dict[str, Any]:
    """Return the weights of a Llama of two heads under GGUF's names, rotary rows interleaved."""
    found = {}
    for name, weight in (module or llama_module()).state_dict().items():
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


def write(path: Path, header: dict[str, Setting], **more: Any) -> Path:
    path.write_bytes(pack_gguf(header, tensors() | more))
    return path


def test_it_scores_as_the_model_it_was_made_from(tmp_path: Path) -> None:
    file = write(tmp_path / "tiny.gguf", settings())
    loaded = load(file, device="cpu")
    assert isinstance(loaded, CausalLM)
    assert loaded.name == str(file)
    assert loaded.max_length == llama().max_length
    for text in LINES[:5]:
        ids = loaded.tokenizer.encode(text)
        assert loaded.tokenizer.add_special_tokens(ids) == llama().tokenizer.add_special_tokens(ids)
        assert ids == llama().tokenizer.encode(text)
        torch.testing.assert_close(loaded.nll([ids], [1])[0], llama().nll([ids], [1])[0])
    before = [p.stat().st_mtime_ns for p in sorted((tmp_path / "cache").rglob("*.json"))]
    load(file, device="cpu")
    assert [p.stat().st_mtime_ns for p in sorted((tmp_path / "cache").rglob("*.json"))] == before


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, 4.0),
        ({"llama.rope.scaling.factor": 2.0}, 2.0),
        ({"llama.rope.scale_linear": 8.0}, 8.0),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, 1.0),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0}, 1.0),
    ],
)
def test_positions_are_stretched_as_llama_cpp_does(
    tmp_path: Path, more: dict[str, Setting], factor: float
) -> None:
    loaded = load(write(tmp_path / "tiny.gguf", settings(**more)), device="cpu")
    assert isinstance(loaded, CausalLM)
    config = type(llama_module().config)(**llama_module().config.to_dict())
    if factor != 1.0:
        config.rope_parameters = {"rope_type": "linear", "factor": factor, "rope_theta": 10000.0}
    module = seeded(0, lambda: LlamaForCausalLM(config))
    module.load_state_dict(llama_module().state_dict())
    expected = CausalLM(module, llama().tokenizer, name="stretched")
    ids = loaded.tokenizer.encode(LINES[0])
    torch.testing.assert_close(loaded.nll([ids], [1])[0], expected.nll([ids], [1])[0])
    changed = (loaded.nll([ids], [1])[0] - llama().nll([ids], [1])[0]).abs().max() > 1e-4
    assert bool(changed) == (factor != 1.0)


def test_heads_of_another_width(tmp_path: Path) -> None:
    # As Mistral Nemo's: the heads together are wider than the model.
    config = type(llama_module().config)(**{**llama_module().config.to_dict(), "head_dim": 12})
    module = seeded(7, lambda: LlamaForCausalLM(config))
    wide: dict[str, Setting] = {f"llama.attention.{n}_length": 12 for n in ("key", "value")}
    file = tmp_path / "wide.gguf"
    file.write_bytes(
        pack_gguf(settings(**wide, **{"llama.rope.dimension_count": 12}), tensors(module))
    )
    loaded = load(file, device="cpu")
    assert isinstance(loaded, CausalLM)
    expected = CausalLM(module, llama().tokenizer, name="wide")
    ids = loaded.tokenizer.encode(LINES[0])
    torch.testing.assert_close(loaded.nll([ids], [1])[0], expected.nll([ids], [1])[0])


@pytest.mark.parametrize("name", ["tiny.GGUF", "tiny.Gguf"])
def test_its_ending_may_be_in_capitals(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / name, settings())
    assert load(file, device="cpu").name == str(file)
    assert len(revision_of(str(file))) == 64


def test_what_is_made_of_it_may_be_read_by_all_who_may_read_the_cache(tmp_path: Path) -> None:
    """Safetensors writes for the owner alone, as do temporary folders."""
    load(write(tmp_path / "tiny.gguf", settings()), device="cpu")
    made = list((tmp_path / "cache").rglob("*"))
    assert len(made) > 3
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in made)


@pytest.mark.parametrize("name", ["pipe.gguf", "pipe"])
def test_a_pipe_is_no_missing_folder(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(MissingModelError, match="is no folder and no GGUF file"):
        load(tmp_path / name, device="cpu")


def test_its_chat_template_is_kept(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    header = settings(**{"tokenizer.chat_template": template})
    lm = load(write(tmp_path / "chat.gguf", header), device="cpu")
    assert isinstance(lm, CausalLM)
    assert AutoTokenizer.from_pretrained(lm.source).chat_template == template


def test_pieces_are_merged_as_their_scores_say(tmp_path: Path) -> None:
    model = json.loads(meta_bpe()._backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    kinds = [2 if t == "<unk>" else 6 if t.startswith("<0x") else 1 for t in tokens]
    scores = {"tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))]}
    built = gguf._build_pieces(scores, tokens, kinds)
    for text in (*LINES[:8], "caf\u00e9 \U0001f44d"):
        assert built.encode(text).ids == meta_bpe().encode(text)
        assert built.decode(built.encode(text).ids) == text


def test_quantised_blocks_are_read_as_llama_cpp_describes_them(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    raw, expected = b"", []
    for _ in range(4):
        scale, offset = np.float16(random.normal()), np.float16(random.normal())
        pairs = random.integers(0, 256, 16).astype(np.uint8)
        raw += scale.tobytes() + offset.tobytes() + pairs.tobytes()
        levels = [int(pair) & 15 for pair in pairs] + [int(pair) >> 4 for pair in pairs]
        expected += [float(scale) * level + float(offset) for level in levels]
    heads: dict[str, Setting] = {"llama.attention.head_count": 1}
    heads["llama.attention.head_count_kv"] = 1
    file = tmp_path / "x.gguf"
    file.write_bytes(pack_gguf(heads, {"output.weight": ((4, 32), 3, raw)}))
    (weight,) = gguf._read_weights(GGUFReader(file).tensors, heads).values()
    assert weight.dtype == np.float32
    np.testing.assert_allclose(weight.reshape(-1), expected, rtol=1e-5, atol=1e-6)


def test_every_weight_of_the_file_is_written_in_full_precision(tmp_path: Path) -> None:
    gguf.write_gguf_folder(write(tmp_path / "x.gguf", settings()), tmp_path)
    expected = llama_module().state_dict()
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        np.testing.assert_array_equal(weight, expected[name].numpy())
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["vocab_size"] == len(settings()["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    assert config["num_key_value_heads"] == llama_module().config.num_key_value_heads


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"general.architecture": "falcon"}, "holds a 'falcon' model; only 'llama'"),
        ({"tokenizer.ggml.model": "bert"}, "vocabulary of kind 'bert'"),
        ({"tokenizer.ggml.pre": "deepseek"}, "cuts words as 'deepseek'"),
        ({"tokenizer.ggml.merges": ["no such"]}, "cut off or damaged .*out of vocabulary"),
        ({"llama.rope.scaling.type": "yarn"}, "scales positions by 'yarn'; understood are"),
        ({"llama.rope.scaling.type": "longrope"}, "scales positions by 'longrope'"),
        ({"llama.rope.dimension_count": 4}, r"rope\.dimension_count 4, but each of its 2 heads"),
        ({"llama.rope.dimension_count": 16}, r"rope\.dimension_count 16, but each .* has 8"),
        ({"llama.attention.value_length": 4}, r"value_length 4, but each of its 2 heads has 8"),
        ({"llama.expert_count": 8}, "llama.expert_count 8; only 0 is understood"),
        ({"llama.attention.causal": False}, "llama.attention.causal False; only True"),
        ({"llama.attention.sliding_window": 9}, "a setting 'llama.attention.sliding_window', whi"),
        ({"llama.logit_scale": 0.5}, "a setting 'llama.logit_scale', which is not understood"),
        ({"llama.rope.scaling.attn_factor": 2.0}, "setting 'llama.rope.scaling.attn_factor'"),
        ({"tokenizer.ggml.add_eos_token": True}, "add_eos_token True; only False"),
        ({"tokenizer.ggml.precompiled_charsmap": "x"}, "a setting 'tokenizer.ggml.precompiled"),
        ({"adapter.type": "lora"}, "a setting 'adapter.type'"),
        ({"general.type": "adapter"}, "general.type 'adapter'; only 'model'"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, more: dict[str, Setting], match: str
) -> None:
    with pytest.raises(ModelError, match=match):
        load(write(tmp_path / "odd.gguf", settings(**more)), device="cpu")
    assert not list((tmp_path / "cache").rglob("config.json"))


def test_settings_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    more: dict[str, Setting] = {
        "general.name": "any",
        "general.type": "model",
        "quantize.imatrix.file": "x",
        "somebody.note": 3,
        "llama.vocab_size": len(settings()["tokenizer.ggml.tokens"]),  # type: ignore[arg-type]
        "llama.rope.dimension_count": 8,
        "llama.attention.key_length": 8,
        "llama.expert_count": 0,
        "tokenizer.ggml.eot_token_id": 1,
        "tokenizer.ggml.add_eos_token": False,
    }
    loaded = load(write(tmp_path / "x.gguf", settings(**more)), device="cpu")
    assert isinstance(loaded, CausalLM)
    ids = loaded.tokenizer.encode(LINES[0])
    torch.testing.assert_close(loaded.nll([ids], [1])[0], llama().nll([ids], [1])[0])


@pytest.mark.parametrize(
    ("name", "tensor", "match"),
    [
        (
            "blk.0.attn_rot_embd.weight",
            pack_float(np.zeros(2, np.float32)),
            "a tensor 'blk.0",
        ),
        ("output.weight", ((4,), 26, b"\0" * 16), "'output.weight' is stored as I32"),
        ("output.weight", ((4,), 99, b"\0" * 16), r"cut off or damaged .*99.* is not a valid"),
    ],
)
def test_tensors_that_are_not_understood_are_refused(
    tmp_path: Path, name: str, tensor: Any, match: str
) -> None:
    with pytest.raises(ModelError, match=match):
        load(write(tmp_path / "odd.gguf", settings(), **{name: tensor}), device="cpu")


@pytest.mark.parametrize("name", ["llama.block_count", "tokenizer.ggml.tokens"])
@pytest.mark.parametrize("value", [None, "x"])
def test_a_setting_that_is_missing_or_of_another_kind_is_named(
    tmp_path: Path, name: str, value: str | None
) -> None:
    header = {key: held for key, held in settings().items() if key != name}
    if value is not None:
        header[name] = value
    with pytest.raises(ModelError, match=f"needs a (number|list) '{name}'"):
        load(write(tmp_path / "odd.gguf", header), device="cpu")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"PK\x03\x04" + b"\0" * 20, "Expected a GGUF file of version 3, got b'PK"),
        (b"GGUF" + struct.pack("<IQQ", 2, 0, 0), "version 2"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pack_text("x") + struct.pack("<I", 99),
            r"cut off or damaged .*99.* is not a valid",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60), "cut off or damaged"),
        (b"", "Expected a GGUF file"),
    ],
)
def test_another_format_is_refused(tmp_path: Path, data: bytes, match: str) -> None:
    file = tmp_path / "odd.gguf"
    file.write_bytes(data)
    with pytest.raises(ModelError, match=match):
        load(file, device="cpu")


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
