"""Merging a low-rank change: the arithmetic, and refusing what does not fit."""

import numpy as np
import pytest

from fuseprompt.errors import PrepareError
from fuseprompt.offline.merge import merge_low_rank

RANDOM = np.random.default_rng(0)
BODY = {
    "bert.query.weight": RANDOM.normal(size=(4, 3)).astype(np.float32),
    "bert.query.bias": np.zeros(4, np.float32),
    "bert.pooler.dense.bias": np.zeros(4, np.float32),
}
A = RANDOM.normal(size=(2, 3)).astype(np.float16)
B = RANDOM.normal(size=(4, 2)).astype(np.float16)


def test_the_product_is_added_and_whole_parameters_replace() -> None:
    delta = {
        "bert.query.lora_a": A,
        "bert.query.lora_b": B,
        "bert.pooler.dense.bias": np.ones(4, np.float32),
        "classifier.bias": np.ones(3, np.float16),
    }
    merged = merge_low_rank(BODY, delta)
    for row in range(4):
        for column in range(3):
            change = sum(float(B[row, r]) * float(A[r, column]) for r in range(2))
            expected = float(BODY["bert.query.weight"][row, column]) + change
            assert merged["bert.query.weight"][row, column] == pytest.approx(expected, abs=1e-5)
    assert merged["bert.pooler.dense.bias"].tolist() == [1, 1, 1, 1]
    assert merged["classifier.bias"].dtype == np.float32
    assert merged["bert.query.bias"].tolist() == [0, 0, 0, 0]
    assert set(merged) == set(BODY) | {"classifier.bias"}


def test_inputs_stay_as_they_are() -> None:
    before = BODY["bert.query.weight"].copy()
    merge_low_rank(BODY, {"bert.query.lora_a": A, "bert.query.lora_b": B})
    np.testing.assert_array_equal(BODY["bert.query.weight"], before)


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        ({"bert.query.lora_a": A}, "has only"),
        ({"bert.other.lora_a": A, "bert.other.lora_b": B}, "no such layer"),
        ({"bert.query.lora_a": A, "bert.query.lora_b": B[:3]}, "expected a product of shape"),
        ({"bert.query.bias": np.ones(5, np.float32)}, "shape .5,. in the trained change"),
    ],
)
def test_what_does_not_fit_is_refused(delta: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(PrepareError, match=message):
        merge_low_rank(BODY, delta)
