"""The COCO reader on the real captions, which the package pycocoevalcap carries in a jar."""

import importlib.util
import zipfile
from pathlib import Path

import pytest

from fuseprompt.evaluation.datasets import read_dataset

JAR = "spice/spice-1.0.jar"
MEMBER = "coco/annotations/captions_val2014.json"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the real annotations."""
    found = importlib.util.find_spec("pycocoevalcap")
    if found is None or not found.submodule_search_locations:
        pytest.skip("pycocoevalcap is not installed (the extra `metrics`)")
    folder = tmp_path_factory.mktemp("coco")
    with zipfile.ZipFile(Path(found.submodule_search_locations[0], JAR)) as jar:
        (folder / "annotations").mkdir()
        (folder / "annotations" / "captions_val2014.json").write_bytes(jar.read(MEMBER))
    return folder


@pytest.mark.slow
def test_the_real_captions_are_all_there(root: Path) -> None:
    dataset = read_dataset("coco", root)
    assert dataset.notes == ()
    assert len(dataset.items) == 40_504
    lengths = [len(item.references) for item in dataset.items]
    assert (sum(lengths), lengths.count(5), lengths.count(6), lengths.count(7)) == (
        *(202_654, 40_373),
        *(128, 3),
    )
    captions = [caption for item in dataset.items for caption in item.references]
    assert all(caption and caption == " ".join(caption.split()) for caption in captions)
    assert sum(caption.isupper() for caption in captions) == 1_431
    assert dataset.items[0].id == "42"
    assert dataset.items[0].references[0] == (
        "This wire metal rack holds several pairs of shoes and sandals"
    )
