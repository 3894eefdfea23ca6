"""Passes halve when memory runs out, remember what fitted, and never change a result."""

import pytest
import torch
from torch import Tensor

from fuseprompt.models.encoder import run_by_length
from fuseprompt.models.passes import PassSize, is_out_of_memory
from fuseprompt.text.retokenize import PaddedIds

CPU = torch.device("cpu")
SAYS = "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"


class Machine:
    """A model that holds so many tokens at once, and records the passes that fitted."""

    def __init__(self, tokens: int, error: type[RuntimeError] = RuntimeError) -> None:
        self.tokens = tokens
        self.error = error
        self.failed = 0
        self.fitted: list[int] = []

    def __call__(self, ids: Tensor, embeds: Tensor | None) -> Tensor:
        if ids.numel() > self.tokens:
            self.failed += 1
            raise self.error(SAYS if self.error is RuntimeError else "CUDA out of memory.")
        self.fitted.append(ids.numel())
        return ids.sum(dim=1, keepdim=True).float()


def rows_of(num_rows: int, length: int) -> PaddedIds:
    ids = torch.arange(num_rows * length).reshape(num_rows, length)
    return PaddedIds(ids, torch.full((num_rows,), length))


@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError])
def test_a_pass_that_does_not_fit_is_halved_and_the_size_remembered(
    error: type[RuntimeError],
) -> None:
    machine, size, rows = Machine(30, error), PassSize(400, CPU), rows_of(50, 4)
    got = run_by_length(machine, rows, device=CPU, size=size)
    assert torch.equal(got[:, 0], rows.ids.sum(dim=1).float())
    assert machine.failed == 3  # 50, 25, 12 rows; then 6.
    assert size.tokens == 24
    run_by_length(machine, rows, device=CPU, size=size)
    assert machine.failed == 3
    assert max(machine.fitted) == 24


def test_the_result_does_not_depend_on_the_size() -> None:
    rows = PaddedIds.from_lists([[1, 2], [3], [4, 5, 6], [7], [8, 9], [1, 1, 1]])
    plain = Machine(1000)
    want = run_by_length(plain, rows, device=CPU)
    for tokens in (1, 2, 5, 7, 1000):
        got = run_by_length(Machine(1000), rows, device=CPU, size=PassSize(tokens, CPU))
        assert torch.equal(got, want)


def test_one_row_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        run_by_length(Machine(3), rows_of(4, 4), device=CPU)


def test_other_errors_pass_through_at_once() -> None:
    calls = []

    def fail(chunk: Tensor) -> None:
        calls.append(len(chunk))
        raise RuntimeError("size mismatch")

    with pytest.raises(RuntimeError, match="size mismatch"):
        list(PassSize(100, CPU).run(torch.arange(10), 2, fail))
    assert calls == [10]


def test_a_real_allocation_that_is_too_large_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_passes_on_an_accelerator_start_larger() -> None:
    assert PassSize(100, torch.device("cuda")).tokens > PassSize(100, CPU).tokens == 100


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens must be at least 1, was: 0"):
        PassSize(0, CPU)
