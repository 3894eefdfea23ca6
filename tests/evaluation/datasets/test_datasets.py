"""Every dataset from invented files, and what holds for all of them."""

from pathlib import Path

import pytest

from fuseprompt.evaluation.datasets import NAMES, SOURCES, read_dataset
from tests.evaluation.datasets.fixtures import (
    WRITERS,
)


def test_every_dataset_has_a_fixture() -> None:
    assert tuple(WRITERS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_dataset_has_its_items_in_order_with_images(name: str, tmp_path: Path) -> None:
    write, ids = WRITERS[name]
    dataset = read_dataset(name, write(tmp_path))
    assert [item.id for item in dataset.items] == ids
    assert all(item.image.is_file() for item in dataset.items)
    assert all(item.references for item in dataset.items)
    assert (dataset.name, dataset.split) == (name, SOURCES[name].splits[0])
    assert len(dataset.fingerprint) == 64


@pytest.mark.parametrize("name", [name for name in NAMES if name != "folder"])
def test_counts_that_differ_from_the_published_are_notes(name: str, tmp_path: Path) -> None:
    notes = read_dataset(name, WRITERS[name][0](tmp_path)).notes
    published = SOURCES[name].counts[SOURCES[name].splits[0]]
    assert any(f"published are {published.images:,}" in note for note in notes)
    assert any(f"published are {published.captions:,}" in note for note in notes)
