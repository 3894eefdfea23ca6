"""Groups and shards depend on the dataset alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from fuseprompt.errors import RunError
from fuseprompt.evaluation.datasets.base import Item
from fuseprompt.evaluation.runs.plan import (
    Job,
    Shard,
    is_done,
    make_groups,
    make_jobs,
    read_shard,
)
from tests.evaluation.runs.test_journal import record


def jobs(*ids: str, sentiment: str = "") -> list[Job]:
    return [Job(name, sentiment, Path(f"{name}.jpg")) for name in ids]


def test_every_item_is_a_job_and_those_of_a_sentiment_come_together() -> None:
    items = [Item(str(n), Path("x"), sentiment=s) for n in (1, 2) for s in ("b", "a")]
    assert [j.key for j in make_jobs(items)] == [("1", "a"), ("2", "a"), ("1", "b"), ("2", "b")]
    assert [j.key for j in make_jobs([Item("7", Path("7"))])] == [("7", "")]


def test_a_limit_counts_images() -> None:
    items = [Item(str(n), Path("x"), sentiment=s) for n in (1, 2, 3) for s in ("a", "b")]
    assert [j.key for j in make_jobs(items, limit=2)] == [
        ("1", "a"), ("2", "a"), ("1", "b"), ("2", "b"),
    ]  # fmt: skip


def test_groups_hold_one_sentiment() -> None:
    mixed = [*jobs("1", "2", "3", sentiment="a"), *jobs("1", "2", sentiment="b")]
    groups = make_groups(mixed, 2)
    assert [[j.id for j in g] for g in groups] == [["1", "2"], ["3"], ["1", "2"]]


def test_a_shard_is_typed() -> None:
    assert read_shard("2/8") == Shard(2, 8)
    assert str(Shard(2, 8)) == "2/8"
    for text in ("0/2", "3/2", "1", "a/b", "1/0"):
        with pytest.raises(RunError, match="expected i/n with i from 1 to n, such as 2/8"):
            read_shard(text)


def test_a_group_is_done_when_all_were_searched_together() -> None:
    group = tuple(jobs("1", "2"))
    together = {(n, ""): replace(record(n), group=("1", "2")) for n in ("1", "2")}
    assert is_done(group, together)
    assert not is_done(group, {("1", ""): together["1", ""]})
    assert not is_done(group, {**together, ("2", ""): record("2")})
    assert not is_done(group, {**together, ("2", ""): record("2", None)})
    assert is_done(group[:1], {("1", ""): record("1")})
