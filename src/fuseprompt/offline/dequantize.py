"""Turn the blocks of a GGUF file's quantised tensors into float32.

One function per storage type, each on whole arrays; the layouts are those of llama.cpp. Nothing
here knows names or shapes of tensors. Read next: `fuseprompt.offline.gguf`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Blocks = NDArray[Any]


@final
@dataclass(frozen=True)
class Storage:
    """How a storage type lays out its weights.

    Attributes:
        name: llama.cpp's name.
        layout: One block.
        size: Weights in a block.
        read: From blocks, shape (n,), to weights, shape (n, size).
    """

    name: str
    layout: np.dtype[Any]
    size: int
    read: Callable[[Blocks], Floats]


def _scaled(blocks: Blocks, field: str) -> Floats:
    return np.asarray(blocks[field].astype(np.float32)[:, None], dtype=np.float32)


def _nibbles(pairs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return low halves, then high halves: a byte holds weight i and weight i + n / 2."""
    return np.concatenate([pairs & 15, pairs >> 4], axis=-1)


def _read_plain(blocks: Blocks) -> Floats:
    return _scaled(blocks, "value")


def _read_bf16(blocks: Blocks) -> Floats:
    bits = np.asarray(blocks["value"], dtype=np.uint32) << np.uint32(16)
    return np.asarray(bits.view(np.float32)[:, None], dtype=np.float32)


def _read_q8_0(blocks: Blocks) -> Floats:
    return _scaled(blocks, "scale") * blocks["levels"].astype(np.float32)


def _read_q4_0(blocks: Blocks) -> Floats:
    return _scaled(blocks, "scale") * (_nibbles(blocks["pairs"]).astype(np.float32) - 8)


def _read_q4_1(blocks: Blocks) -> Floats:
    return _scaled(blocks, "scale") * _nibbles(blocks["pairs"]) + _scaled(blocks, "offset")


def _read_scales(packed: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Return the eight scales and eight minima, six bits each, that twelve bytes hold."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _read_q4_k(blocks: Blocks) -> Floats:
    scales, minima = _read_scales(blocks["scales"])
    levels = _nibbles(blocks["pairs"].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    steps = (_scaled(blocks, "scale") * scales)[..., None]
    offsets = (_scaled(blocks, "offset") * minima)[..., None]
    return (steps * levels - offsets).reshape(len(blocks), 256)


def _read_q5_k(blocks: Blocks) -> Floats:
    scales, minima = _read_scales(blocks["scales"])
    levels = _nibbles(blocks["pairs"].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = (blocks["high"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    steps = (_scaled(blocks, "scale") * scales)[..., None]
    offsets = (_scaled(blocks, "offset") * minima)[..., None]
    return (steps * (levels + 16 * fifth) - offsets).reshape(len(blocks), 256)


def _read_q6_k(blocks: Blocks) -> Floats:
    low = _nibbles(blocks["low"].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (blocks["high"].reshape(-1, 2, 1, 32) >> shifts) & 3
    levels = (low | (high << 4)).astype(np.float32) - 32
    steps = _scaled(blocks, "scale") * blocks["scales"].astype(np.float32)
    return (levels.reshape(-1, 16, 16) * steps[..., None]).reshape(len(blocks), 256)


def _block(*fields: tuple[Any, ...]) -> np.dtype[Any]:
    return np.dtype(list(fields))


#: Storage types by their code in the file.
STORAGES: Final[Mapping[int, Storage]] = MappingProxyType(
    {
        0: Storage("F32", _block(("value", "<f4")), 1, _read_plain),
        1: Storage("F16", _block(("value", "<f2")), 1, _read_plain),
        2: Storage("Q4_0", _block(("scale", "<f2"), ("pairs", "u1", 16)), 32, _read_q4_0),
        3: Storage(
            "Q4_1",
            _block(("scale", "<f2"), ("offset", "<f2"), ("pairs", "u1", 16)),
            32,
            _read_q4_1,
        ),
        8: Storage("Q8_0", _block(("scale", "<f2"), ("levels", "i1", 32)), 32, _read_q8_0),
        12: Storage(
            "Q4_K",
            _block(("scale", "<f2"), ("offset", "<f2"), ("scales", "u1", 12), ("pairs", "u1", 128)),
            256,
            _read_q4_k,
        ),
        13: Storage(
            "Q5_K",
            _block(
                ("scale", "<f2"),
                ("offset", "<f2"),
                ("scales", "u1", 12),
                ("high", "u1", 32),
                ("pairs", "u1", 128),
            ),
            256,
            _read_q5_k,
        ),
        14: Storage(
            "Q6_K",
            _block(("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("scale", "<f2")),
            256,
            _read_q6_k,
        ),
        30: Storage("BF16", _block(("value", "<u2")), 1, _read_bf16),
    }
)
