"""FlickrStyle10K: two files whose lines belong together, names out of pickles never unpickled."""

import pickle
from pathlib import Path

import pytest

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import read_dataset
from tests.evaluation.datasets import fixtures
from tests.evaluation.datasets.fixtures import pickled_names, write_images


def test_the_invented_pickle_is_one() -> None:
    names = ["2513_03d333.jpg", "2903_d3e38d.jpg"]
    assert pickle.loads(pickled_names(names)) == names


@pytest.mark.parametrize("quoted", [False, True])
def test_names_are_read_as_python_2_wrote_them(quoted: bool, tmp_path: Path) -> None:
    root = fixtures.write_flickrstyle(tmp_path)
    file = root / "FlickrStyle_v0.9" / "humor" / "train.p"
    if quoted:  # Python 2 writes a plain str so.
        file.write_bytes(file.read_bytes().replace(b".jpg\n", b".jpg'\n").replace(b"V", b"S'"))
    assert len(pickle.loads(file.read_bytes())) == 2
    assert [item.id for item in read_dataset("flickrstyle10k", root).items][::2] == [
        "1000",
        "36979",
    ]


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("unpickled",)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        b"(lp1\nVname",
        *(pickle.dumps([Evil()], protocol=protocol) for protocol in range(3)),
        pickle.dumps(["name.jpg", 7], protocol=0),
        pickle.dumps({"name.jpg": 7}, protocol=0),
    ],
)
def test_anything_but_names_is_refused_and_not_run(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = fixtures.write_flickrstyle(tmp_path)
    (root / "FlickrStyle_v0.9" / "humor" / "train.p").write_bytes(content)
    with pytest.raises(DatasetError, match=r"humor/train\.p: no pickled list of names"):
        read_dataset("flickrstyle10k", root)
    assert capsys.readouterr().out == ""


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
