"""A whole run with a searcher that costs nothing: what is kept, resumed, refused and survived."""

import errno
import json
import os
import resource
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, tzinfo
from functools import partial
from pathlib import Path

import pytest

from fuseprompt.cli.bar import Bar
from fuseprompt.cli.evaluate import _Status
from fuseprompt.errors import RunError
from fuseprompt.evaluation.datasets.base import Item, make_dataset
from fuseprompt.evaluation.runs import dispatch
from fuseprompt.evaluation.runs.evaluate import Status, caption_dataset
from fuseprompt.evaluation.runs.folder import read_run
from fuseprompt.evaluation.runs.plan import Job, RunOptions
from fuseprompt.evaluation.runs.workers import Answer, StartWorker
from tests.evaluation.runs.fakes import (
    SETTINGS,
    InlineWorker,
    MakeFake,
    captions_of,
    done,
    fake_dataset,
    inline_workers,
    run_fake,
)


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    """Return the captions of an undisturbed run over ten images."""
    run_fake(tmp_path / "data", tmp_path / "whole")
    return captions_of(tmp_path / "whole")


def test_a_run_leaves_its_files(tmp_path: Path) -> None:
    run = run_fake(tmp_path / "data", tmp_path / "run")
    assert len(run.captions) == 10
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"settings.json", "journal.jsonl", "captions.jsonl", "timing.jsonl", "lock"}
    lines = [json.loads(line) for line in captions_of(tmp_path / "run").splitlines()]
    assert [line["id"] for line in lines] == [str(n) for n in range(1, 11)]
    assert list(lines[0]) == ["dataset", "id", "sentiment", "caption", "token_ids", "terms"]
    assert all(value == round(value, 4) for value in lines[0]["terms"].values())
    timing = (tmp_path / "run" / "timing.jsonl").read_text().splitlines()
    assert json.loads(timing[9])["id"] == "10"


def test_cut_off_at_any_byte_and_resumed_the_captions_are_the_same(
    tmp_path: Path, whole: bytes
) -> None:
    journal = (tmp_path / "whole" / "journal.jsonl").read_bytes()
    cut = tmp_path / "cut"
    for size in [*range(0, len(journal), 251), len(journal) - 1]:
        shutil.copytree(tmp_path / "whole", cut)
        (cut / "captions.jsonl").unlink()
        (cut / "journal.jsonl").write_bytes(journal[:size])
        run_fake(tmp_path / "data", cut, resume=True)
        assert captions_of(cut) == whole
        shutil.rmtree(cut)


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run_fake(tmp_path / "data", tmp_path / "run", MakeFake(log=str(log)))
    assert log.read_text().splitlines() == ["1 2 3 4", "5 6 7 8", "9 10"]
    run_fake(tmp_path / "data", tmp_path / "run", MakeFake(broken="not called"), resume=True)


def test_a_group_that_was_cut_off_is_redone_whole(tmp_path: Path, whole: bytes) -> None:
    lines = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "whole" / "journal.jsonl").write_text("".join(lines[:6]))
    log = tmp_path / "log"
    run_fake(tmp_path / "data", tmp_path / "whole", MakeFake(log=str(log)), resume=True)
    assert log.read_text().splitlines() == ["5 6 7 8", "9 10"]
    assert captions_of(tmp_path / "whole") == whole


def test_shards_in_any_order_change_no_caption(tmp_path: Path, whole: bytes) -> None:
    lines = []
    for index in (2, 1):
        out = tmp_path / f"shard{index}"
        run = run_fake(tmp_path / "data", out, shard=f"{index}/2")
        assert run.scope.num_jobs == 10
        assert run.scope.num_shard_jobs == len(run.captions)
        lines += captions_of(out).splitlines()
    assert sorted(lines) == sorted(whole.splitlines())
    with pytest.raises(RunError, match="holds shard 1/2, asked for was 2/2"):
        run_fake(tmp_path / "data", tmp_path / "shard1", shard="2/2", resume=True)


def test_a_limit_can_be_raised_and_not_lowered(tmp_path: Path, whole: bytes) -> None:
    run = run_fake(tmp_path / "data", tmp_path / "run", limit=6)
    assert len(run.captions) == 6
    run_fake(tmp_path / "data", tmp_path / "run", resume=True)
    assert captions_of(tmp_path / "run") == whole
    with pytest.raises(RunError, match="was made for all images, asked for were 6"):
        run_fake(tmp_path / "data", tmp_path / "run", limit=6, resume=True)


def test_every_sentiment_is_a_caption_of_its_own(tmp_path: Path) -> None:
    plain = fake_dataset(tmp_path / "data", 3)
    items = [replace(i, sentiment=s) for i in plain.items for s in ("positive", "negative")]
    run = caption_dataset(
        make_dataset("folder", "all", items=items),
        SETTINGS,
        RunOptions(Path("data"), tmp_path / "run"),
        open_workers=lambda: inline_workers(MakeFake()),
    )
    assert list(run.captions) == [(str(i), s) for i in (1, 2, 3) for s in ("negative", "positive")]
    assert run.records["2", "negative"].group == ("1", "2", "3")


# --- what is refused ------------------------------------------------------------------------------


def test_an_existing_run_needs_resume(tmp_path: Path) -> None:
    run_fake(tmp_path / "data", tmp_path / "run", count=2)
    with pytest.raises(RunError, match=r"there is a run in it. Go on with it by --resume"):
        run_fake(tmp_path / "data", tmp_path / "run", count=2)
    with pytest.raises(RunError, match="is not empty and holds no run"):
        run_fake(tmp_path / "data", tmp_path / "data", count=2, resume=True)
    with pytest.raises(RunError, match="cannot be used as a folder"):
        run_fake(tmp_path / "data", tmp_path / "data" / "1.txt", count=2)


def test_other_settings_are_named(tmp_path: Path) -> None:
    run_fake(tmp_path / "data", tmp_path / "run")
    other = replace(SETTINGS, threads=2, search={"steps": 4, "beam": 2})
    with pytest.raises(RunError, match="made with other settings") as caught:
        run_fake(tmp_path / "data", tmp_path / "run", settings=other, resume=True)
    for difference in ("threads: 1 there, 2 here", "search.steps: 3 there, 4", "search.beam: null"):
        assert difference in str(caught.value)


def test_a_run_that_holds_nothing_takes_other_settings(tmp_path: Path) -> None:
    other = replace(SETTINGS, threads=2)
    with pytest.raises(ValueError, match="no such model"):
        run_fake(tmp_path / "data", tmp_path / "run", MakeFake(broken="no such model"), limit=9)
    with pytest.raises(RunError, match="there is a run in it"):
        run_fake(tmp_path / "data", tmp_path / "run", settings=other, limit=3)
    run = run_fake(tmp_path / "data", tmp_path / "run", settings=other, limit=3, resume=True)
    assert (run.settings, run.scope.limit, len(run.captions)) == (other, 3, 3)
    with pytest.raises(RunError, match="threads: 2 there, 1 here"):
        run_fake(tmp_path / "data", tmp_path / "run", limit=3, resume=True)


def test_a_journal_from_other_settings_is_refused(tmp_path: Path) -> None:
    run_fake(tmp_path / "data", tmp_path / "one")
    run_fake(tmp_path / "data", tmp_path / "two", settings=replace(SETTINGS, seed=1))
    shutil.copy(tmp_path / "one" / "journal.jsonl", tmp_path / "two" / "journal.jsonl")
    with pytest.raises(RunError, match="Files of two runs were mixed"):
        run_fake(
            tmp_path / "data", tmp_path / "two", settings=replace(SETTINGS, seed=1), resume=True
        )
    with pytest.raises(RunError, match="Files of two runs were mixed"):
        read_run(tmp_path / "two")


def test_two_runs_into_one_folder(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "run"

    def open_workers() -> AbstractContextManager[StartWorker]:
        with pytest.raises(RunError, match=f"another run is writing to it .process {os.getpid()}"):
            run_fake(data, out, resume=True)
        return inline_workers(MakeFake())

    run = caption_dataset(
        fake_dataset(data), SETTINGS, RunOptions(Path("data"), out), open_workers=open_workers
    )
    assert len(run.captions) == 10


# --- faults ---------------------------------------------------------------------------------------


def test_an_unreadable_image_is_left_out_and_mended_later(tmp_path: Path, whole: bytes) -> None:
    bad = tmp_path / "data" / "6.txt"
    bad.write_text("")
    log = tmp_path / "log"
    run = run_fake(tmp_path / "data", tmp_path / "run", MakeFake(log=str(log)))
    assert log.read_text().splitlines() == ["1 2 3 4", "9 10", "5 7 8"]
    assert list(run.failures) == [("6", "")]
    failure = run.failures["6", ""]
    assert (failure.attempt, failure.error) == (3, "6.txt cannot be read.")
    assert b'"6"' not in captions_of(tmp_path / "run")
    # Still bad: it is tried again, and nothing else is done again.
    run = run_fake(tmp_path / "data", tmp_path / "run", MakeFake(log=str(log)), resume=True)
    assert len(log.read_text().splitlines()) == 3
    assert run.failures["6", ""].attempt == 6
    bad.write_text("thing 6")
    run_fake(tmp_path / "data", tmp_path / "run", MakeFake(log=str(log)), resume=True)
    assert log.read_text().splitlines()[3:] == ["5 6 7 8"]
    assert captions_of(tmp_path / "run") == whole


def test_an_image_that_always_fails_costs_no_other_its_caption(tmp_path: Path) -> None:
    log = tmp_path / "log"
    make = MakeFake(poison=("7",), log=str(log))
    run = run_fake(tmp_path / "data", tmp_path / "run", make)
    assert list(run.failures) == [("7", "")]
    assert run.failures["7", ""].error == "ValueError: 7 is poison"
    assert len(run.captions) == 9
    assert run.failures["7", ""].attempt == 4  # Thrice with its group, once alone.
    searched = log.read_text().splitlines()
    assert searched.count("5 6 7 8") == 3
    assert searched[-4:] == ["5", "6", "7", "8"]
    # Still bad: only it is tried alone again. Once it is mended, its group is searched whole.
    run_fake(tmp_path / "data", tmp_path / "run", make, resume=True)
    assert log.read_text().splitlines()[len(searched) :] == [*["5 6 7 8"] * 3, "7"]
    run_fake(tmp_path / "data", tmp_path / "run", resume=True)
    run_fake(tmp_path / "data", tmp_path / "whole")
    assert captions_of(tmp_path / "run") == captions_of(tmp_path / "whole")


class Crowded(InlineWorker):
    """A worker without the memory for two images."""

    def search(self, jobs: Sequence[Job]) -> "Future[Answer]":
        return super().search(jobs) if len(jobs) == 1 else done(Answer("here", error="no memory"))


def test_images_that_only_fail_together_are_searched_alone(tmp_path: Path) -> None:
    run = caption_dataset(
        fake_dataset(tmp_path / "data", 5),
        SETTINGS,
        RunOptions(Path("data"), tmp_path / "run"),
        open_workers=lambda: nullcontext(partial(Crowded, MakeFake())),
    )
    assert run.failures == {}
    assert [record.group for record in run.records.values()] == [(str(n),) for n in range(1, 6)]


def test_too_many_failures_end_the_run(tmp_path: Path) -> None:
    make = MakeFake(poison=("1", "2", "3"))
    with pytest.raises(RunError, match=r"2 images failed, more than --max-failures 1.*is poison"):
        run_fake(tmp_path / "data", tmp_path / "run", make, max_failures=1)


def test_missing_images_are_found_before_any_work(tmp_path: Path) -> None:
    items = [Item(str(i), tmp_path / f"{i}.txt") for i in range(5)]
    (tmp_path / "0.txt").write_text("there")
    notes: list[str] = []
    dataset = make_dataset("folder", "all", items=items)

    def attempt(max_failures: int) -> None:
        caption_dataset(
            dataset,
            SETTINGS,
            RunOptions(Path("data"), tmp_path / "run", max_failures=max_failures),
            open_workers=lambda: inline_workers(MakeFake()),
            on_note=notes.append,
        )

    with pytest.raises(RunError, match=r"4 of 5 image files are missing, such as .*1.txt"):
        attempt(3)
    assert notes == []
    attempt(4)
    assert "4 of 5" in notes[0]


def test_a_disk_that_becomes_full_loses_nothing(tmp_path: Path, whole: bytes) -> None:
    """A limit on the size of a file stops a write half-way, as a full disk does."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, old[1]))
    try:
        with pytest.raises(RunError, match=r"cannot be written.*go on with --resume"):
            run_fake(tmp_path / "data", tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    held = (tmp_path / "run" / "journal.jsonl").read_bytes()
    assert 0 < len(held) < 4000
    assert held.endswith(b"\n")
    assert len(read_run(tmp_path / "run").captions) == 4
    run_fake(tmp_path / "data", tmp_path / "run", resume=True)
    assert captions_of(tmp_path / "run") == whole


def test_a_full_disk_is_called_so(tmp_path: Path, monkeypatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    run_fake(tmp_path / "data", tmp_path / "run", limit=4)
    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(RunError, match=r"the disk is full. All earlier captions are safe"):
        run_fake(tmp_path / "data", tmp_path / "run", resume=True)


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, whole: bytes, monkeypatch) -> None:
    class Jumping:
        years = iter(range(2050, 1990, -1))

        @classmethod
        def now(cls, zone: tzinfo) -> datetime:
            return datetime(next(cls.years), 1, 1, tzinfo=zone)

    bad = tmp_path / "data" / "6.txt"
    text = bad.read_text()
    bad.write_text("")
    monkeypatch.setattr(dispatch, "datetime", Jumping)
    monkeypatch.setattr(time, "time", lambda: -1.0)
    run_fake(tmp_path / "data", tmp_path / "run")
    bad.write_text(text)
    run_fake(tmp_path / "data", tmp_path / "run", resume=True)
    assert captions_of(tmp_path / "run") == whole


def test_the_status_has_pace_and_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Status] = []
    caption_dataset(
        fake_dataset(tmp_path / "data"),
        SETTINGS,
        RunOptions(Path("data"), tmp_path / "run"),
        open_workers=lambda: inline_workers(MakeFake()),
        on_status=seen.append,
    )
    assert [s.num_done for s in seen] == [4, 8, 10]
    shown: list[str] = []
    bar = Bar()
    bar.is_shown = True
    monkeypatch.setattr(bar, "show", lambda line, *_: shown.append(line))
    _Status(bar).show(Status(num_jobs=100, num_done=40, num_failed=0, num_new=20, seconds=3600.0))
    _Status(bar).show(Status(100, 0, 0, 0, 1.0))
    assert shown == ["40/100 captions, 20 an hour, 3 h 00 min left", "0/100 captions, none yet"]
