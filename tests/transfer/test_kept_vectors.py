"""Vectors on disk: read when they fit, made when they do not."""

from pathlib import Path

import pytest
import torch

from fuseprompt.transfer.kept_vectors import read_or_make

ROWS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def never() -> torch.Tensor:
    raise AssertionError("nothing had to be made")


def test_rows_that_fit_are_read(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "a.safetensors"
    assert torch.equal(read_or_make(file, 3, ROWS[:1], lambda: ROWS), ROWS)
    assert torch.equal(read_or_make(file, 3, ROWS[:1], never), ROWS)
    with pytest.raises(AssertionError, match="nothing"):
        read_or_make(file.with_name("b.safetensors"), 3, ROWS[:1], never)


@pytest.mark.parametrize(
    ("probe", "num_rows"),
    [
        (ROWS[:1] + 0.01, 3),
        (ROWS[:1], 2),
        (torch.ones(1, 3), 3),
        (ROWS[:1].half(), 3),
    ],
    ids=["another model", "other rows", "another width", "another precision"],
)
def test_rows_that_do_not_fit_are_made_anew(
    tmp_path: Path, probe: torch.Tensor, num_rows: int
) -> None:
    file = tmp_path / "a.safetensors"
    read_or_make(file, 3, ROWS[:1], lambda: ROWS)
    made = probe.expand(num_rows, -1) * 2
    assert torch.equal(read_or_make(file, num_rows, probe, lambda: made), made)


def test_half_precision_may_round_to_the_other_side(tmp_path: Path) -> None:
    file, rows = tmp_path / "a.safetensors", ROWS.half()
    read_or_make(file, 3, rows[:1], lambda: rows)
    beside = torch.nextafter(rows[:1].float(), torch.tensor(9.0)).half()
    one_step = rows[:1] + torch.tensor([[2**-10, 2**-9]]).half()
    for probe in (beside, one_step):
        assert torch.equal(read_or_make(file, 3, probe, never), rows)
