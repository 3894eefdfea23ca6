"""Read a GGUF file: its settings and its tensors as float32 arrays.

Little-endian version 3, the common storage types, and the names and row order of Llama-type weights
(Llama, Mistral, SmolLM2). It is no general reader and never writes.
transformers can read GGUF, too, but needs one more package, takes half a minute and splits digits
wrongly for this model. Read next: `fuseprompt.offline.convert`.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fuseprompt.errors import PrepareError
from fuseprompt.offline.dequantize import STORAGES

#: A value of the file's header.
Value = bool | int | float | str | list["Value"]

# Codes of the GGUF format for header values: struct letter of each number type; 8 is a string, 9 a
# list.
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _LIST = 8, 9

_LLAMA_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class _Stored:
    """Where one tensor lies: NumPy shape, storage type, first byte."""

    shape: tuple[int, ...]
    kind: int
    start: int


@final
class GgufFile:
    """A parsed GGUF file.

    Attributes:
        settings: The header, e.g. `settings["llama.block_count"]`.
    """

    def __init__(self, data: bytes) -> None:
        """Parse the header.

        Args:
            data: The whole file.

        Raises:
            PrepareError: If it is no GGUF file of version 3.
        """
        self._data = data
        self._at = 0
        magic, version = bytes(data[:4]), int.from_bytes(data[4:8], "little")
        if magic != b"GGUF" or version != 3:
            raise PrepareError(
                f"Expected a GGUF file of version 3, got {magic!r} version {version}."
            )
        self._at = 8
        num_tensors, num_settings = self._number("Q"), self._number("Q")
        self.settings: dict[str, Value] = {}
        for _ in range(int(num_settings)):
            name = self._text()
            self.settings[name] = self._value(int(self._number("I")))
        found: dict[str, _Stored] = {}
        for _ in range(int(num_tensors)):
            name = self._text()
            # GGUF counts axes from the fastest, NumPy from the slowest.
            shape = tuple(int(self._number("Q")) for _ in range(int(self._number("I"))))[::-1]
            found[name] = _Stored(
                shape=shape, kind=int(self._number("I")), start=int(self._number("Q"))
            )
        alignment = self.settings.get("general.alignment", 32)
        assert isinstance(alignment, int)
        origin = -(-self._at // alignment) * alignment
        self._stored: Mapping[str, _Stored] = {
            name: _Stored(stored.shape, stored.kind, origin + stored.start)
            for name, stored in found.items()
        }

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in the file's order."""
        return list(self._stored)

    def number(self, name: str) -> int | float:
        """Return a setting that must be a number.

        Args:
            name: Key of `settings`.

        Returns:
            Its value.

        Raises:
            PrepareError: If it is absent or of another type.
        """
        value = self.settings.get(name)
        if not isinstance(value, int | float):
            raise PrepareError(f"The GGUF file needs a number {name!r}, got {value!r}.")
        return value

    def strings(self, name: str) -> list[str]:
        """Return a setting that must be a list of strings.

        Args:
            name: Key of `settings`.

        Returns:
            Its value.

        Raises:
            PrepareError: If it is absent or of another type.
        """
        value = self.settings.get(name)
        if not isinstance(value, list):
            raise PrepareError(f"The GGUF file needs a list {name!r}, got {type(value).__name__}.")
        return [str(item) for item in value]

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return one tensor, dequantised.

        Args:
            name: One of `names`.

        Returns:
            A new float32 array in row-major order, e.g. (out, in) for a linear layer.

        Raises:
            PrepareError: If it is stored in a type this reader does not know.
        """
        stored = self._stored[name]
        count = int(np.prod(stored.shape))
        storage = STORAGES.get(stored.kind)
        if storage is None:
            known = ", ".join(known.name for known in STORAGES.values())
            raise PrepareError(
                f"Tensor {name!r} has GGUF storage type {stored.kind}; known are {known}."
            )
        blocks = np.frombuffer(self._data, storage.layout, count // storage.size, stored.start)
        flat = storage.read(blocks)
        return np.ascontiguousarray(flat, dtype=np.float32).reshape(stored.shape)

    def _number(self, letter: str) -> bool | int | float:
        layout = struct.Struct("<" + letter)
        (value,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        assert isinstance(value, bool | int | float)
        return value

    def _text(self) -> str:
        length = int(self._number("Q"))
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8")

    def _value(self, kind: int) -> Value:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _STRING:
            return self._text()
        if kind == _LIST:
            inner, length = int(self._number("I")), int(self._number("Q"))
            return [self._value(inner) for _ in range(length)]
        raise PrepareError(f"The GGUF file has a setting of unknown type {kind}.")


def read_llama_config(file: GgufFile) -> dict[str, object]:
    """Return the settings of a Llama model under transformers' names.

    Args:
        file: A GGUF file of architecture "llama".

    Returns:
        Content for `config.json`, without the ids of special tokens.
    """
    vocab_size = file.settings.get("llama.vocab_size")
    if not isinstance(vocab_size, int):  # Older files leave it out.
        vocab_size = len(file.strings("tokenizer.ggml.tokens"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": int(file.number("llama.embedding_length")),
        "initializer_range": 0.02,
        "intermediate_size": int(file.number("llama.feed_forward_length")),
        "max_position_embeddings": int(file.number("llama.context_length")),
        "mlp_bias": False,
        "num_attention_heads": int(file.number("llama.attention.head_count")),
        "num_hidden_layers": int(file.number("llama.block_count")),
        "num_key_value_heads": int(file.number("llama.attention.head_count_kv")),
        "rms_norm_eps": file.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.number("llama.rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in file.names,
        "vocab_size": vocab_size,
    }


def read_llama_weights(file: GgufFile) -> dict[str, NDArray[np.float32]]:
    """Return the weights under the names and in the row order of transformers' Llama.

    Args:
        file: A GGUF file of architecture "llama".

    Returns:
        Parameter name to float32 array; a tied output matrix is left out.

    Raises:
        PrepareError: If a tensor has an unexpected name.
    """
    heads = {
        "attn_q": int(file.number("llama.attention.head_count")),
        "attn_k": int(file.number("llama.attention.head_count_kv")),
    }
    weights: dict[str, NDArray[np.float32]] = {}
    for name in file.names:
        weight = file.tensor(name)
        if name == "token_embd.weight":
            weights["model.embed_tokens.weight"] = weight
        elif name == "output_norm.weight":
            weights["model.norm.weight"] = weight
        elif name == "output.weight":
            weights["lm_head.weight"] = weight
        elif (match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)) and match[
            2
        ] in _LLAMA_NAMES:
            if match[2] in heads:
                weight = _split_rotary_halves(weight, heads[match[2]])
            weights[f"model.layers.{match[1]}.{_LLAMA_NAMES[match[2]]}.weight"] = weight
        else:
            raise PrepareError(
                f"The GGUF file has a tensor {name!r}, which a plain Llama model has not."
            )
    return weights


def _split_rotary_halves(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    # GGUF interleaves the rows of the two rotary halves of a head; transformers has them in
    # sequence.
    rows, columns = weight.shape
    paired = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows, columns)
