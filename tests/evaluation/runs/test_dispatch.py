"""A search that takes too long is ended."""

import time
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from fuseprompt.evaluation.runs import dispatch
from fuseprompt.evaluation.runs.dispatch import _Place, _Task, _Watch
from fuseprompt.evaluation.runs.evaluate import caption_dataset
from fuseprompt.evaluation.runs.folder import Run
from fuseprompt.evaluation.runs.plan import Job, RunOptions
from fuseprompt.evaluation.runs.workers import Answer, LocalWorker
from tests.evaluation.runs.fakes import (
    SETTINGS,
    InlineWorker,
    MakeFake,
    captions_of,
    fake_dataset,
    run_fake,
)

TASK = _Task(tuple(Job(name, "", Path(name)) for name in ("3", "4", "5", "6", "7")))


class Endless(InlineWorker):
    """A worker that never answers for a group with an image whose id begins with 2."""

    def search(self, jobs) -> "Future[Answer]":
        return Future() if any(j.id[0] == "2" for j in jobs) else super().search(jobs)


class Busy(InlineWorker):
    """A worker that answers when a test sets its answer."""

    def search(self, jobs) -> "Future[Answer]":
        return Future()


def busy_place() -> _Place:
    place = _Place(partial(Busy, MakeFake()), 0)
    place.begin(TASK)
    return place


class Clock:
    """A clock that is set by hand and never goes by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e6
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def look(self, watch: _Watch, *places: _Place, turns: int = 1) -> list[_Place]:
        """Look once a second; return what the last look found."""
        for _ in range(turns):
            self.now += 1.0
            late = watch.find_late(places)
        return late


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_what_takes_too_long_is_named(clock: Clock) -> None:
    notes: list[str] = []
    watch, one, other = _Watch(10.0, notes.append), busy_place(), busy_place()
    assert clock.look(watch, one, turns=8) == []
    assert clock.look(watch, one, other, turns=2) == []
    assert clock.look(watch, one, other) == [one]
    one.begin(TASK)
    assert clock.look(watch, one, other, turns=7) == []
    assert clock.look(watch, one, other) == [other]
    assert len(notes) == 2
    assert notes[0].startswith("3, 4, 5 and 2 more: the search took longer than --group-timeout")
    assert watch.reason == "the search took longer than --group-timeout 10 s; it was ended"


def test_loading_of_models_does_not_count(clock: Clock) -> None:
    watch, place = _Watch(10.0, print), busy_place()
    place.worker.ready = Future()
    assert clock.look(watch, place, turns=100) == []
    place.worker.ready.set_result("")
    assert clock.look(watch, place, turns=10) == []
    assert clock.look(watch, place) == [place]


def test_nothing_takes_too_long_without_a_limit(clock: Clock) -> None:
    assert clock.look(_Watch(None, print), busy_place(), turns=10_000) == []


def test_time_in_which_this_process_was_stopped_does_not_count(clock: Clock) -> None:
    watch, place = _Watch(10.0, print), busy_place()
    clock.look(watch, place)
    clock.now += 3600.0
    assert clock.look(watch, place) == []
    assert clock.look(watch, place, turns=5) == [place]


def run_stuck(data: Path, out: Path, *, group_timeout: float | None) -> Run:
    return caption_dataset(
        fake_dataset(data),
        SETTINGS,
        RunOptions(Path("data"), out, group_timeout=group_timeout, hours=1.0),
        open_workers=lambda: nullcontext(partial(Endless, MakeFake())),
    )


def test_an_image_that_hangs_fails_alone(tmp_path: Path, clock: Clock, monkeypatch) -> None:
    def wait(*_: object, **__: object) -> None:
        clock.now += 1.0

    monkeypatch.setattr(dispatch, "wait", wait)
    run_fake(tmp_path / "data", tmp_path / "poison", MakeFake(poison=("2",)))
    run = run_stuck(tmp_path / "data", tmp_path / "run", group_timeout=30.0)
    (failure,) = run.failures.values()
    assert failure.id == "2"
    assert failure.error == "the search took longer than --group-timeout 30 s; it was ended"
    assert failure.attempt == 4  # Thrice with its group, once alone.
    # Nothing else differs from a run in which that image fails at once.
    assert captions_of(tmp_path / "run") == captions_of(tmp_path / "poison")
    # Without the limit only --hours ends it.
    run = run_stuck(tmp_path / "data", tmp_path / "other", group_timeout=None)
    assert len(run.captions) == 0


def test_a_run_with_an_image_that_hangs_ends(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "_TURN", 0.1)
    run_fake(tmp_path / "data", tmp_path / "poison", MakeFake(poison=("7",)))
    run = caption_dataset(
        fake_dataset(tmp_path / "data"),
        SETTINGS,
        RunOptions(Path("data"), tmp_path / "run", workers=2, group_timeout=0.3),
        open_workers=lambda: nullcontext(partial(LocalWorker, MakeFake(hanging=("7",)))),
    )
    assert [key[0] for key in run.failures] == ["7"]
    assert "--group-timeout 0.3 s" in run.failures["7", ""].error
    assert captions_of(tmp_path / "run") == captions_of(tmp_path / "poison")
