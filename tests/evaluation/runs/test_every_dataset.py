"""Every dataset through a whole run and back: captions written, kept, and found again to be scored.

The searcher costs nothing, so the images are text files under the names of images.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fuseprompt.evaluation.datasets import NAMES, Dataset, read_dataset
from fuseprompt.evaluation.metrics.predictions import match, read_predictions
from fuseprompt.evaluation.runs.evaluate import caption_dataset
from fuseprompt.evaluation.runs.folder import Run
from fuseprompt.evaluation.runs.plan import RunOptions
from tests.evaluation.datasets.fixtures import WRITERS
from tests.evaluation.runs.fakes import SETTINGS, MakeFake, captions_of, inline_workers


def read_with_text_images(name: str, root: Path, *, sentiment: str | None = None) -> Dataset:
    dataset = read_dataset(name, WRITERS[name][0](root), sentiment=sentiment)
    for item in dataset.items:
        item.image.write_text(f"thing {item.id}")
    return dataset


def run(dataset: Dataset, out: Path, *, resume: bool = False, limit: int | None = None) -> Run:
    settings = replace(
        SETTINGS, dataset=dataset.name, split=dataset.split, fingerprint=dataset.fingerprint
    )
    return caption_dataset(
        dataset,
        settings,
        RunOptions(Path("data"), out, resume=resume, limit=limit),
        open_workers=lambda: inline_workers(MakeFake()),
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_item_gets_a_caption_that_scoring_finds(name: str, tmp_path: Path) -> None:
    dataset = read_with_text_images(name, tmp_path / "data")
    run(dataset, tmp_path / "run")
    lines = [json.loads(line) for line in captions_of(tmp_path / "run").splitlines()]
    assert [(line["id"], line["sentiment"]) for line in lines] == [
        (item.id, item.sentiment) for item in dataset.items
    ]
    predictions = read_predictions([tmp_path / "run"])
    for sentiment in {item.sentiment for item in dataset.items}:
        items = [item for item in dataset.items if item.sentiment == sentiment]
        captions = match(predictions, items, sentiment=sentiment)
        assert set(captions) == {item.id for item in items}
        assert all(f"thing {id_} " in caption for id_, caption in captions.items())


@pytest.mark.parametrize("name", ["senticap", "nocaps"])
def test_a_run_over_some_images_goes_on_with_the_others(name: str, tmp_path: Path) -> None:
    dataset = read_with_text_images(name, tmp_path / "data")
    run(dataset, tmp_path / "whole")
    some = run(dataset, tmp_path / "part", limit=1)
    assert {id_ for id_, _ in some.captions} == {dataset.items[0].id}
    run(dataset, tmp_path / "part", resume=True)
    # The group of the first image was incomplete: it is redone, so the bytes are the same.
    assert captions_of(tmp_path / "part") == captions_of(tmp_path / "whole")


def test_a_missing_image_is_a_failure_and_no_caption(tmp_path: Path) -> None:
    dataset = read_with_text_images("senticap", tmp_path / "data")
    dataset.items[0].image.unlink()
    done = run(dataset, tmp_path / "run")
    assert {id_ for id_, _ in done.failures} == {"7"}
    assert {id_ for id_, _ in done.captions} == {"12"}


def test_sentiments_that_a_folder_does_not_have_can_be_asked_for(tmp_path: Path) -> None:
    dataset = read_with_text_images("folder", tmp_path / "data", sentiment="both")
    assert {sentiment for _, sentiment in run(dataset, tmp_path / "run").captions} == {
        "negative",
        "positive",
    }
