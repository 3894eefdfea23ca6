"""Reading GGUF: header, the three storage types against loops, and the order of rotary rows."""

import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from fuseprompt.errors import PrepareError
from fuseprompt.offline.gguf import GgufFile, read_llama_config, read_llama_weights

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


def test_settings_of_every_kind_are_read() -> None:
    settings: dict[str, Setting] = {
        "n": 7,
        "x": 0.5,
        "name": "Füchse",
        "yes": True,
        "words": ["a", "ĠB"],
        "kinds": [3, -1],
    }
    file = GgufFile(pack_gguf(settings, {}))
    assert file.settings == settings
    assert file.number("n") == 7
    assert file.strings("kinds") == ["3", "-1"]


def test_plain_tensors_are_read_in_row_major_order() -> None:
    first = np.arange(6, dtype=np.float32).reshape(2, 3)
    second = np.arange(5, dtype=np.float32)
    file = GgufFile(pack_gguf({}, {"a": pack_float(first), "b": pack_float(second)}))
    assert file.names == ["a", "b"]
    np.testing.assert_array_equal(file.tensor("a"), first)
    np.testing.assert_array_equal(file.tensor("b"), second)


def test_eight_bit_blocks_agree_with_a_loop() -> None:
    random = np.random.default_rng(0)
    raw, expected = b"", []
    for _ in range(4):
        scale = np.float16(random.normal())
        levels = random.integers(-128, 128, 32).astype(np.int8)
        raw += scale.tobytes() + levels.tobytes()
        expected += [float(scale) * int(level) for level in levels]
    tensor = GgufFile(pack_gguf({}, {"q": ((2, 64), 8, raw)})).tensor("q")
    assert tensor.dtype == np.float32
    np.testing.assert_allclose(tensor.reshape(-1), expected, rtol=1e-6)


def test_four_bit_blocks_agree_with_a_loop() -> None:
    random = np.random.default_rng(1)
    raw, expected = b"", []
    for _ in range(4):
        scale, offset = np.float16(random.normal()), np.float16(random.normal())
        pairs = random.integers(0, 256, 16).astype(np.uint8)
        raw += scale.tobytes() + offset.tobytes() + pairs.tobytes()
        levels = [int(pair) & 15 for pair in pairs] + [int(pair) >> 4 for pair in pairs]
        expected += [float(scale) * level + float(offset) for level in levels]
    tensor = GgufFile(pack_gguf({}, {"q": ((4, 32), 3, raw)})).tensor("q")
    np.testing.assert_allclose(tensor.reshape(-1), expected, rtol=1e-5, atol=1e-6)


def interleave(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Order rows as GGUF files do, by loops: both halves of a head in turn."""
    rows: list[NDArray[np.float32]] = []
    size = len(weight) // num_heads
    for head in range(num_heads):
        for pair in range(size // 2):
            rows.append(weight[head * size + pair])
            rows.append(weight[head * size + size // 2 + pair])
    return np.stack(rows)


def test_llama_weights_get_their_names_and_their_row_order() -> None:
    random = np.random.default_rng(2)
    query = random.normal(size=(16, 8)).astype(np.float32)
    key = random.normal(size=(8, 8)).astype(np.float32)
    value = random.normal(size=(8, 8)).astype(np.float32)
    assert not np.array_equal(interleave(query, 2), query)
    file = GgufFile(
        pack_gguf(
            {"llama.attention.head_count": 2, "llama.attention.head_count_kv": 1},
            {
                "token_embd.weight": pack_float(value),
                "output_norm.weight": pack_float(value[0]),
                "blk.12.attn_q.weight": pack_float(interleave(query, 2)),
                "blk.12.attn_k.weight": pack_float(interleave(key, 1)),
                "blk.12.attn_v.weight": pack_float(value),
            },
        )
    )
    weights = read_llama_weights(file)
    layer = "model.layers.12.self_attn"
    np.testing.assert_array_equal(weights[f"{layer}.q_proj.weight"], query)
    np.testing.assert_array_equal(weights[f"{layer}.k_proj.weight"], key)
    np.testing.assert_array_equal(weights[f"{layer}.v_proj.weight"], value)
    assert {"model.embed_tokens.weight", "model.norm.weight"} < set(weights)


def test_the_configuration_is_read_under_the_names_of_transformers() -> None:
    names = [
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "block_count",
        "vocab_size",
    ]
    names += ["attention.head_count", "attention.head_count_kv"]
    settings: dict[str, Setting] = {f"llama.{name}": 10 + n for n, name in enumerate(names)}
    settings["llama.attention.layer_norm_rms_epsilon"] = 0.5
    settings["llama.rope.freq_base"] = 2.0
    config = read_llama_config(GgufFile(pack_gguf(settings, {})))
    assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (
        10,
        13,
        14,
    )
    assert (config["rms_norm_eps"], config["rope_theta"]) == (0.5, 2.0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04" + b"\0" * 20, "Expected a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 2, 0, 0), "version 2"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pack_text("x") + struct.pack("<I", 99),
            "type 99",
        ),
    ],
)
def test_another_format_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(PrepareError, match=message):
        GgufFile(data)


def test_unknown_storage_and_unknown_tensors_are_refused() -> None:
    file = GgufFile(
        pack_gguf(
            {"llama.attention.head_count": 1, "llama.attention.head_count_kv": 1},
            {
                "blk.0.attn_rot_embd.weight": pack_float(np.zeros(2, np.float32)),
                "q": ((32,), 10, b""),
            },
        )
    )
    with pytest.raises(PrepareError, match="storage type 10"):
        file.tensor("q")
    with pytest.raises(PrepareError, match=r"a tensor 'blk.0.attn_rot_embd.weight'"):
        read_llama_weights(file)


@pytest.mark.parametrize("name", ["absent", "name"])
def test_a_setting_of_the_wrong_kind_is_refused(name: str) -> None:
    file = GgufFile(pack_gguf({"name": "x"}, {}))
    with pytest.raises(PrepareError, match=f"needs a number '{name}'"):
        file.number(name)
    with pytest.raises(PrepareError, match=f"needs a list '{name}'"):
        file.strings(name)
