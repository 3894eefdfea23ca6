"""Names out of pickles that are never unpickled."""

import pickle
from pathlib import Path

import pytest

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets.flickrstyle import read_pickled_names
from tests.evaluation.datasets.fixtures import pickled_names

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
