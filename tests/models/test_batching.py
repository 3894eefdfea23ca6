"""Batches by length: order kept, no padding seen unasked, as large as fits; fp32 without TF32."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fuseprompt.errors import is_out_of_memory
from fuseprompt.models.batching import (
    TOKENS_PER_PASS,
    PassSize,
    run_by_length,
)
from fuseprompt.text.retokenize import PaddedIds

CPU = torch.device("cpu")
SAYS = "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"


def usual() -> PassSize:
    return PassSize(TOKENS_PER_PASS, CPU)


def first_and_sum(rows: PaddedIds, embeds: Tensor | None) -> Tensor:
    """Return first id, sum of ids and length of each row; embeddings count by their sum."""
    ids = rows.ids
    total = ids.sum(1) if embeds is None else embeds.sum((1, 2))
    return torch.stack([ids[:, 0], total, torch.full_like(ids[:, 0], ids.shape[1])], 1)


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=6), min_size=1, max_size=20))
def test_rows_come_back_in_order(rows: list[list[int]]) -> None:
    got = run_by_length(first_and_sum, PaddedIds.from_lists(rows), size=usual())
    assert got.tolist() == [[r[0], sum(r), len(r)] for r in rows]
    assert got.dtype == torch.float32


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=6), min_size=1, max_size=20))
def test_embeddings_follow_their_rows(rows: list[list[int]]) -> None:
    ids = PaddedIds.from_lists(rows)
    embeds = ids.ids[..., None].expand(-1, -1, 2).float() + 100.0  # padding must not be counted
    got = run_by_length(first_and_sum, ids, embeds=embeds, size=usual())
    assert got.tolist() == [[r[0], 2 * sum(r) + 200 * len(r), len(r)] for r in rows]


def test_no_pass_is_larger_than_allowed() -> None:
    sizes: list[tuple[int, int]] = []

    def watch(rows: PaddedIds, embeds: Tensor | None) -> Tensor:
        sizes.append((rows.ids.shape[0], rows.ids.shape[1]))
        return rows.ids[:, :1]

    rows = PaddedIds(torch.ones(3000, 7, dtype=torch.long), torch.full((3000,), 7))
    run_by_length(watch, rows, size=usual())
    assert sum(n for n, _ in sizes) == 3000
    assert max(n * s for n, s in sizes) <= TOKENS_PER_PASS
    assert len(sizes) == -(-3000 // (TOKENS_PER_PASS // 7))


def test_a_row_longer_than_a_pass_runs_alone() -> None:
    long = TOKENS_PER_PASS + 1
    rows = PaddedIds(torch.ones(2, long, dtype=torch.long), torch.full((2,), long))
    assert run_by_length(first_and_sum, rows, size=usual())[:, 2].tolist() == [
        long,
        long,
    ]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_lengths_are_joined_where_padding_costs_less_than_a_pass(lengths: list[int]) -> None:
    widths, groups = zip(*usual().group(torch.tensor(lengths), pads=True), strict=True)
    assert sorted(torch.cat(groups).tolist()) == list(range(len(lengths)))
    own = [sorted(lengths[i] for i in group.tolist()) for group in groups]
    assert [group[-1] for group in own] == list(widths)
    for shorter, longer in itertools.pairwise(own):
        assert shorter[-1] < longer[0]  # ... and not joined:
        assert (longer[-1] - shorter[-1]) * shorter.count(shorter[-1]) > 64
    for group in own:
        assert all((group[-1] - n) * group.count(n) <= 64 for n in group)


def test_rows_of_joined_lengths_are_padded_with_zeros_and_come_back_in_order() -> None:
    rows = [[1, 2], [3], [4, 5, 6], [7] * 300, [8] * 299]
    passes: list[tuple[list[int], int]] = []

    def watch(padded: PaddedIds, embeds: Tensor | None) -> Tensor:
        assert all(
            not any(row[n:]) for row, n in zip(padded.ids.tolist(), padded.lengths, strict=True)
        )
        passes.append((padded.lengths.tolist(), padded.ids.shape[1]))
        return torch.stack([padded.ids.sum(1), padded.lengths], 1)

    got = run_by_length(watch, PaddedIds.from_lists(rows), size=usual(), masks=True)
    assert got.tolist() == [[sum(row), len(row)] for row in rows]
    assert passes == [([2, 1, 3], 3), ([300, 299], 300)]


def test_gradients_reach_the_right_row() -> None:
    ids = PaddedIds.from_lists([[1, 2], [3], [4, 5, 6]])
    embeds = torch.zeros(3, 3, 2, requires_grad=True)
    weights = torch.tensor([1.0, 10.0, 100.0])
    got = run_by_length(lambda i, e: e.sum((1, 2))[:, None], ids, embeds=embeds, size=usual())
    (grad,) = torch.autograd.grad((got[:, 0] * weights).sum(), embeds)
    assert grad[:, :, 0].tolist() == [[1.0, 1.0, 0.0], [10.0, 0.0, 0.0], [100.0, 100.0, 100.0]]


class Machine:
    """A model that holds so many tokens at once, and records the passes that fitted."""

    def __init__(self, tokens: int, error: type[RuntimeError] = RuntimeError) -> None:
        self.tokens = tokens
        self.error = error
        self.failed = 0
        self.fitted: list[int] = []

    def __call__(self, rows: PaddedIds, embeds: Tensor | None) -> Tensor:
        ids = rows.ids
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
    got = run_by_length(machine, rows, size=size)
    assert torch.equal(got[:, 0], rows.ids.sum(dim=1).float())
    assert machine.failed == 3  # 50, 25, 12 rows; then 6.
    assert size.tokens == 24
    run_by_length(machine, rows, size=size)
    assert machine.failed == 3
    assert max(machine.fitted) == 24


def test_the_result_does_not_depend_on_the_size() -> None:
    rows = PaddedIds.from_lists([[1, 2], [3], [4, 5, 6], [7], [8, 9], [1, 1, 1]])
    plain = Machine(1000)
    want = run_by_length(plain, rows, size=usual())
    for tokens in (1, 2, 5, 7, 1000):
        got = run_by_length(Machine(1000), rows, size=PassSize(tokens, CPU))
        assert torch.equal(got, want)


def test_one_row_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        run_by_length(Machine(3), rows_of(4, 4), size=usual())


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
