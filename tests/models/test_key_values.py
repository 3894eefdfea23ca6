"""What rows of ids share at their beginning, counted by hand."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fuseprompt.models.key_values import count_bytes, count_shared

ROWS = st.lists(st.integers(0, 2), min_size=0, max_size=6)


@given(ROWS, ROWS)
def test_the_shared_beginning_ends_at_the_first_difference(left, right) -> None:
    differ = [i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b]
    want = min([*differ, len(left), len(right)])
    ids = [torch.tensor(row, dtype=torch.long) for row in (left, right)]
    assert int(count_shared(*ids)) == want


def test_every_row_is_compared_with_every_other() -> None:
    left, right = torch.tensor([[1, 2, 3], [1, 1, 3]]), torch.tensor([[1, 2], [2, 2], [1, 1]])
    assert count_shared(left[:, None], right[None]).tolist() == [[2, 0, 1], [1, 0, 2]]


def test_bytes_are_those_of_all_layers() -> None:
    layer = (torch.zeros(1, 2), torch.zeros(1, 2))
    assert count_bytes([layer] * 3) == 6 * 2 * 4
