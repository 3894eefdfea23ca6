"""Every storage type against loops written down from llama.cpp's description of its blocks."""

import numpy as np
import pytest

from fuseprompt.offline.dequantize import STORAGES

QUANTISED = [code for code, storage in STORAGES.items() if storage.size > 1]


def random_blocks(code: int, count: int = 5) -> np.ndarray:
    """Return blocks of random bytes with finite scales."""
    storage = STORAGES[code]
    rng = np.random.default_rng(code)
    raw = rng.integers(0, 256, count * storage.layout.itemsize, dtype=np.uint8)
    blocks = np.frombuffer(raw.tobytes(), storage.layout).copy()
    for field in {"scale", "offset"} & set(storage.layout.names or ()):
        blocks[field] = rng.normal(size=count).astype(np.float16)
    return blocks


def six_bits(packed: np.ndarray, j: int) -> tuple[int, int]:
    q = [int(x) for x in packed]
    if j < 4:
        return q[j] & 63, q[j + 4] & 63
    return (q[j + 4] & 15) | ((q[j - 4] >> 6) << 4), (q[j + 4] >> 4) | ((q[j] >> 6) << 4)


def by_loops(code: int, block: np.void) -> list[float]:
    """Return the weights of one block, one after the other."""
    scale = float(block["scale"])
    if code == 8:
        return [scale * int(q) for q in block["levels"]]
    if code in (2, 3):
        levels = [int(b) & 15 for b in block["pairs"]] + [int(b) >> 4 for b in block["pairs"]]
        if code == 2:
            return [scale * (q - 8) for q in levels]
        return [scale * q + float(block["offset"]) for q in levels]
    weights: list[float] = []
    if code in (12, 13):
        for group in range(8):
            step, low = six_bits(block["scales"], group)
            for i in range(32):
                byte = int(block["pairs"][32 * (group // 2) + i])
                level = byte >> 4 if group % 2 else byte & 15
                if code == 13:
                    level += 16 * (int(block["high"][i]) >> group & 1)
                weights.append(scale * step * level - float(block["offset"]) * low)
        return weights
    for i in range(256):
        half, rest = divmod(i, 128)
        quarter, at = divmod(rest, 32)
        byte = int(block["low"][64 * half + 32 * (quarter % 2) + at])
        low = byte >> 4 if quarter >= 2 else byte & 15
        high = int(block["high"][32 * half + at]) >> (2 * quarter) & 3
        weights.append(scale * int(block["scales"][i // 16]) * ((low | high << 4) - 32))
    return weights


@pytest.mark.parametrize("code", QUANTISED, ids=lambda code: STORAGES[code].name)
def test_blocks_are_read_as_described(code: int) -> None:
    blocks = random_blocks(code)
    got = STORAGES[code].read(blocks)
    assert got.shape == (5, STORAGES[code].size)
    want = np.array([by_loops(code, block) for block in blocks])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


def test_halves_are_read() -> None:
    values = np.array([1.0, -2.5, 0.0, 1e-3], dtype=np.float32)
    half = np.frombuffer(values.astype("<f2").tobytes(), STORAGES[1].layout)
    np.testing.assert_allclose(STORAGES[1].read(half)[:, 0], values, rtol=1e-3)
    brain = np.frombuffer(
        (values.view(np.uint32) >> 16).astype("<u2").tobytes(), STORAGES[30].layout
    )
    np.testing.assert_allclose(STORAGES[30].read(brain)[:, 0], values, rtol=1e-2)
