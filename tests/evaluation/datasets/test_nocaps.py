"""NoCaps: ids, domains, and what a file without them gives."""

from pathlib import Path

import pytest

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import read_dataset
from tests.evaluation.datasets import fixtures
from tests.evaluation.datasets.fixtures import (
    nocaps_form,
    write_json,
)


def test_nocaps_has_domains_and_its_own_ids(tmp_path: Path) -> None:
    dataset = read_dataset("nocaps", fixtures.write_nocaps(tmp_path))
    assert [item.domain for item in dataset.items] == ["near-domain", "in-domain", "out-domain"]
    assert dataset.items[1].image.name == "00a1.jpg"
    assert "1 images are in-domain, published are 648" in dataset.notes


def test_nocaps_without_captions_or_domains_says_so(tmp_path: Path) -> None:
    form = nocaps_form()
    del form["annotations"]
    for image in form["images"]:
        del image["domain"]
    write_json(tmp_path / "nocaps_val_image_info.json", form)
    dataset = read_dataset("nocaps", tmp_path)
    assert all(not item.references for item in dataset.items)
    assert any("can be written, not scored" in note for note in dataset.notes)
    assert any("names no domains" in note for note in dataset.notes)


def test_an_unknown_domain_is_refused(tmp_path: Path) -> None:
    form = nocaps_form()
    form["images"][1]["domain"] = "mid-domain"
    write_json(tmp_path / "nocaps_val_4500_captions.json", form)
    with pytest.raises(DatasetError, match=r"images 1: domain is 'mid-domain', expected one of"):
        read_dataset("nocaps", tmp_path)


@pytest.mark.parametrize("id_", ["0013ea2087020901", "0013112087020901", "bear"])
def test_ids_of_open_images_are_refused(id_: str, tmp_path: Path) -> None:
    file = write_json(tmp_path / "x.json", [{"image_id": id_, "caption": "A bear."}])
    with pytest.raises(DatasetError, match="expected a NoCaps image id"):
        read_dataset("nocaps", file)
