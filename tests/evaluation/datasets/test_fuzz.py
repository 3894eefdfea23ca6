"""Whatever a file holds, a reader returns a dataset or says in a `DatasetError` what is wrong."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseprompt.errors import DatasetError
from fuseprompt.evaluation.datasets import NAMES, Dataset, read_dataset
from tests.evaluation.datasets.fixtures import (
    coco_form,
    karpathy_form,
    nocaps_form,
    senticap_form,
    write_flickrstyle,
)

KEYS = [
    *("images", "annotations", "sentences", "id", "image_id", "file_name", "filename", "image"),
    *("captions", "caption", "raw", "split", "sentiment", "domain", "cocoid", "filepath"),
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10**20)
    | st.floats()
    | st.sampled_from(["7", "test", "a.jpg", "..", "", "in-domain", "C:\\x_7.jpg", "\ud800"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=12,
)
READERS = [name for name in NAMES if name not in ("folder", "flickrstyle10k")]


def readable(read: Callable[[], object]) -> bool:
    """Return whether a reader returned; anything but a `DatasetError` is a fault of the reader."""
    try:
        found = read()
    except DatasetError:
        return False
    if isinstance(found, Dataset):
        assert all(item.id for item in found.items)
        json.dumps([item.references for item in found.items], ensure_ascii=False).encode()
    return True


def test_readable_lets_other_errors_through() -> None:
    assert readable(lambda: None)
    with pytest.raises(KeyError):
        readable(lambda: {}["x"])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "x.json"


@pytest.mark.parametrize("name", READERS)
@given(content=VALUES)
def test_any_json_is_read_or_refused(name: str, content: object, file: Path) -> None:
    file.write_text(json.dumps(content))
    readable(lambda: read_dataset(name, file))


FORMS = {
    "coco": coco_form,
    "karpathy": karpathy_form,
    "nocaps": nocaps_form,
    "senticap": senticap_form,
}


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
def test_a_form_with_one_field_replaced_is_read_or_refused(
    name: str, data: st.DataObject, file: Path
) -> None:
    content = FORMS[name]()
    target = data.draw(st.sampled_from(content["images"] + content.get("annotations", [])))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(VALUES)
    file.write_text(json.dumps(content))
    readable(lambda: read_dataset(name, file))


@given(content=st.binary(max_size=40) | st.builds(pickle.dumps, VALUES))
def test_any_bytes_are_names_or_refused(content: bytes, file: Path) -> None:
    root = file.parent / "flickrstyle"
    if not root.exists():
        write_flickrstyle(root)
    (root / "FlickrStyle_v0.9" / "humor" / "train.p").write_bytes(content)
    readable(lambda: read_dataset("flickrstyle10k", root))
