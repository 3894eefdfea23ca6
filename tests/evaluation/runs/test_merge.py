"""Shards that are merged are one run."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fuseprompt.errors import RunError
from fuseprompt.evaluation.runs.folder import merge, read_run
from tests.evaluation.runs.fakes import SETTINGS, MakeFake, captions_of, run_fake


def shards(tmp_path: Path, count: int = 3) -> list[Path]:
    folders = [tmp_path / f"shard{index}" for index in range(1, count + 1)]
    for index, folder in enumerate(folders, start=1):
        run_fake(tmp_path / "data", folder, shard=f"{index}/{count}")
    return folders


def test_merged_shards_are_the_bytes_of_one_run(tmp_path: Path) -> None:
    whole = run_fake(tmp_path / "data", tmp_path / "whole")
    merged = merge(list(reversed(shards(tmp_path))), tmp_path / "out")
    assert captions_of(tmp_path / "out") == captions_of(tmp_path / "whole")
    assert merged.scope == whole.scope
    assert merged.num_missing == 0


def test_a_missing_shard_is_counted_and_can_be_made_good(tmp_path: Path) -> None:
    run_fake(tmp_path / "data", tmp_path / "whole")
    merged = merge(shards(tmp_path)[:2], tmp_path / "out")
    assert merged.num_missing == 2
    run_fake(tmp_path / "data", tmp_path / "out", resume=True)
    assert captions_of(tmp_path / "out") == captions_of(tmp_path / "whole")


def test_captions_in_two_folders_count_once(tmp_path: Path) -> None:
    run_fake(tmp_path / "data", tmp_path / "one", MakeFake(poison=("9",)))
    run_fake(tmp_path / "data", tmp_path / "two")
    merged = merge([tmp_path / "one", tmp_path / "two"], tmp_path / "out")
    # "10" was searched without "9" in the first folder, which counts.
    assert merged.captions["10", ""] == read_run(tmp_path / "one").captions["10", ""]
    assert merged.failures == {}


def test_other_settings_and_other_images_are_refused(tmp_path: Path) -> None:
    run_fake(tmp_path / "data", tmp_path / "one")
    run_fake(tmp_path / "data", tmp_path / "two", settings=replace(SETTINGS, seed=1))
    run_fake(tmp_path / "data", tmp_path / "three", limit=5)
    with pytest.raises(RunError, match="seed: 0 there, 1 here"):
        merge([tmp_path / "one", tmp_path / "two"], tmp_path / "out")
    with pytest.raises(RunError, match=r"a run of 10 captions, .* of one of 5"):
        merge([tmp_path / "one", tmp_path / "three"], tmp_path / "out")
    with pytest.raises(RunError, match=r"no run, there is no settings.json in it"):
        merge([tmp_path / "one", tmp_path / "data"], tmp_path / "out")
    with pytest.raises(RunError, match="there is a run in it"):
        merge([tmp_path / "one"], tmp_path / "two")


def test_one_run_is_merged_in_place(tmp_path: Path) -> None:
    run_fake(tmp_path / "data", tmp_path / "run")
    before = captions_of(tmp_path / "run")
    (tmp_path / "run" / "captions.jsonl").unlink()
    assert len(merge([tmp_path / "run"]).captions) == 10
    assert captions_of(tmp_path / "run") == before
    with pytest.raises(RunError, match="no run"):
        merge([tmp_path / "none"])
    assert not (tmp_path / "none").exists()


def test_damaged_settings_are_named(tmp_path: Path) -> None:
    run_fake(tmp_path / "data", tmp_path / "run")
    file = tmp_path / "run" / "settings.json"
    text = file.read_text()
    for damaged, words in (
        (text[:50], "cannot be read"),
        (text.replace('"format_version": 1', '"format_version": 9'), "has format 9, expected 1"),
        (text.replace('"seed"', '"sede"'), "missing or unknown here: sede, seed"),
    ):
        file.write_text(damaged)
        with pytest.raises(RunError, match=words):
            merge([tmp_path / "run"])
    shutil.rmtree(tmp_path / "run")
