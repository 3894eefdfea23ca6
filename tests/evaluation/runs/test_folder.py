"""The files of a run: their order, their bytes, and captions of any kind."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fuseprompt.errors import RunError
from fuseprompt.evaluation.datasets.base import Item
from fuseprompt.evaluation.metrics.predictions import match, read_predictions
from fuseprompt.evaluation.runs.folder import (
    JOURNAL,
    Run,
    Scope,
    read_run,
    write_merged,
    write_settings,
    write_text,
)
from fuseprompt.evaluation.runs.journal import Journal, Record
from fuseprompt.evaluation.runs.plan import ALL
from tests.evaluation.runs.fakes import SETTINGS, captions_of
from tests.evaluation.runs.test_journal import ODD, record


def make_run(folder: Path, records: list[Record]) -> Run:
    folder.mkdir()
    write_settings(folder, SETTINGS, Scope(len(records), ALL, len(records), None, "data"))
    with Journal(folder / JOURNAL) as journal:
        journal.append([replace(one, settings=SETTINGS.hash) for one in records])
    run = read_run(folder)
    write_merged(run)
    return run


def test_captions_are_in_the_order_of_the_dataset(tmp_path: Path) -> None:
    both = [replace(record("9"), sentiment=s) for s in ("positive", "negative")]
    run = make_run(tmp_path / "run", [record("x"), record("10"), *both, record("b", None)])
    lines = [json.loads(line) for line in captions_of(run.folder).splitlines()]
    assert [(line["id"], line["sentiment"]) for line in lines] == [
        ("9", "negative"), ("9", "positive"), ("10", ""), ("x", ""),
    ]  # fmt: skip
    assert (len(run.captions), len(run.failures), run.num_missing) == (4, 1, 1)


def test_times_hosts_and_attempts_are_elsewhere(tmp_path: Path) -> None:
    later = replace(record("1"), host="there", time="2050-01-01T00:00:00+00:00", attempt=3)
    for name, one in (("a", record("1")), ("b", later)):
        make_run(tmp_path / name, [one])
    assert captions_of(tmp_path / "a") == captions_of(tmp_path / "b")
    timing = json.loads((tmp_path / "b" / "timing.jsonl").read_text())
    assert (timing["host"], timing["attempt"], timing["seconds"]) == ("there", 3, 0.25)


def test_odd_captions_are_a_line_each_and_can_be_scored(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [record(str(n), text) for n, text in enumerate(ODD)])
    text = captions_of(run.folder).decode("ascii")
    assert len(text.splitlines()) == len(ODD)  # By whatever a reader takes for the end of a line.
    read = [json.loads(line)["caption"] for line in text.splitlines()]
    assert read == [one.caption for one in run.captions.values()]
    items = [Item(str(n), Path(f"{n}.jpg")) for n in range(len(ODD))]
    assert len(match(read_predictions([run.folder]), items)) == len(ODD)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old\n")
    with pytest.raises(RunError, match="cannot be written"):
        write_text(tmp_path / "file" / "below", "new\n")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match="cannot be written"):
        write_text(tmp_path / "folder", "new\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
