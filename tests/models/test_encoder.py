"""Batches by length: order kept, no padding seen, at most so many tokens at once."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fuseprompt.models import encoder
from fuseprompt.models.encoder import run_by_length
from fuseprompt.text.retokenize import PaddedIds

CPU = torch.device("cpu")


def first_and_sum(ids: Tensor, embeds: Tensor | None) -> Tensor:
    """Return first id, sum of ids and length of each row; embeddings count by their sum."""
    total = ids.sum(1) if embeds is None else embeds.sum((1, 2))
    return torch.stack([ids[:, 0], total, torch.full_like(ids[:, 0], ids.shape[1])], 1)


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=6), min_size=1, max_size=20))
def test_rows_come_back_in_order(rows: list[list[int]]) -> None:
    got = run_by_length(first_and_sum, PaddedIds.from_lists(rows), device=CPU)
    assert got.tolist() == [[r[0], sum(r), len(r)] for r in rows]
    assert got.dtype == torch.float32


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=6), min_size=1, max_size=20))
def test_embeddings_follow_their_rows(rows: list[list[int]]) -> None:
    ids = PaddedIds.from_lists(rows)
    embeds = ids.ids[..., None].expand(-1, -1, 2).float() + 100.0  # padding must not be counted
    got = run_by_length(first_and_sum, ids, embeds=embeds, device=CPU)
    assert got.tolist() == [[r[0], 2 * sum(r) + 200 * len(r), len(r)] for r in rows]


def test_no_pass_is_larger_than_allowed(monkeypatch: object) -> None:
    sizes: list[tuple[int, int]] = []

    def watch(ids: Tensor, embeds: Tensor | None) -> Tensor:
        sizes.append((ids.shape[0], ids.shape[1]))
        return ids[:, :1]

    rows = PaddedIds(torch.ones(3000, 7, dtype=torch.long), torch.full((3000,), 7))
    run_by_length(watch, rows, device=CPU)
    assert sum(n for n, _ in sizes) == 3000
    assert max(n * s for n, s in sizes) <= encoder.TOKENS_PER_PASS
    assert len(sizes) == -(-3000 // (encoder.TOKENS_PER_PASS // 7))


def test_a_row_longer_than_a_pass_runs_alone() -> None:
    long = encoder.TOKENS_PER_PASS + 1
    rows = PaddedIds(torch.ones(2, long, dtype=torch.long), torch.full((2,), long))
    assert run_by_length(first_and_sum, rows, device=CPU)[:, 2].tolist() == [long, long]


def test_gradients_reach_the_right_row() -> None:
    ids = PaddedIds.from_lists([[1, 2], [3], [4, 5, 6]])
    embeds = torch.zeros(3, 3, 2, requires_grad=True)
    weights = torch.tensor([1.0, 10.0, 100.0])
    got = run_by_length(lambda i, e: e.sum((1, 2))[:, None], ids, embeds=embeds, device=CPU)
    (grad,) = torch.autograd.grad((got[:, 0] * weights).sum(), embeds)
    assert grad[:, :, 0].tolist() == [[1.0, 1.0, 0.0], [10.0, 0.0, 0.0], [100.0, 100.0, 100.0]]
