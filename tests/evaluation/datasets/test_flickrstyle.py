"""FlickrStyle10K: two files whose lines belong together, names out of pickles never unpickled."""

import pickle
from pathlib import Path

import pytest

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import read_dataset
from fuseprompt.evaluation.datasets.flickrstyle import read_pickled_names
from tests.evaluation.datasets import fixtures
from tests.evaluation.datasets.fixtures import pickled_names, write_images

NAMES = ["2513_03d333.jpg", "2903_d3e38d.jpg", "2513_03d333.jpg"]


@pytest.mark.parametrize("protocol", range(6))
def test_names_of_every_protocol(protocol: int, tmp_path: Path) -> None:
    file = tmp_path / "train.p"
    # Made apart, so that no name is a reference to an earlier one.
    file.write_bytes(pickle.dumps(["".join(list(name)) for name in NAMES], protocol=protocol))
    assert read_pickled_names(file) == NAMES


def test_names_as_python_2_wrote_them(tmp_path: Path) -> None:
    file = tmp_path / "train.p"
    file.write_bytes(pickled_names(NAMES))
    assert read_pickled_names(file) == NAMES
    assert pickle.loads(file.read_bytes()) == NAMES


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("unpickled",)


def test_anything_but_names_is_refused_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.p"
    file.write_bytes(pickle.dumps([Evil()]))
    with pytest.raises(
        DatasetError, match=r"GLOBAL at byte \d+\. Expected a pickled list of names"
    ):
        read_pickled_names(file)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [b"", b"no pickle", b"(lp1\nVname"])
def test_what_is_no_pickle_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "train.p"
    file.write_bytes(content)
    with pytest.raises(DatasetError, match="no pickled list of names"):
        read_pickled_names(file)


def test_flickrstyle_joins_names_and_captions_of_both_encodings(tmp_path: Path) -> None:
    dataset = read_dataset("flickrstyle10k", fixtures.write_flickrstyle(tmp_path))
    assert [(item.id, item.sentiment, item.references[0]) for item in dataset.items] == [
        ("1000", "humorous", "a dog digs for gold ."),
        ("1000", "romantic", "two hearts on the track, in love ."),
        ("36979", "humorous", "the café is on strike ."),
        ("36979", "romantic", "a kiss ."),
    ]


def test_flickrstyle_refuses_lists_of_different_lengths(tmp_path: Path) -> None:
    root = fixtures.write_flickrstyle(tmp_path)
    (root / "FlickrStyle_v0.9" / "humor" / "funny_train.txt").write_text("one line\n")
    with pytest.raises(DatasetError, match=r"1 captions, but 2 names in humor/train\.p"):
        read_dataset("flickrstyle10k", root)


def test_flickrstyle_takes_photos_under_their_full_names(tmp_path: Path) -> None:
    root = fixtures.write_flickrstyle(tmp_path)
    write_images(root / "images", ["1000_03d333.jpg"])
    assert read_dataset("flickrstyle10k", root).items[0].image.name == "1000_03d333.jpg"
