"""A search that takes too long is found, and one that takes far longer than all before is told."""

import time
from pathlib import Path

import pytest

from fuseprompt.evaluation.runs import dispatch
from fuseprompt.evaluation.runs.evaluate import Plan, evaluate
from fuseprompt.evaluation.runs.executors import Done, LocalExecutor, Task
from fuseprompt.evaluation.runs.folder import Run
from fuseprompt.evaluation.runs.patience import Patience
from fuseprompt.evaluation.runs.plan import Job
from tests.evaluation.runs.fakes import (
    SETTINGS,
    InlineExecutor,
    MakeFake,
    captions_of,
    fake_dataset,
    run_fake,
)

JOBS = tuple(Job(name, "", Path(name)) for name in ("3", "4", "5", "6", "7"))


class Clock:
    """A clock that is set by hand and never goes by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e6
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def look(self, patience: Patience, *numbers: int, turns: int = 1) -> list[int]:
        """Look once a second; return what the last look said."""
        for _ in range(turns):
            self.now += 1.0
            late = patience.look(dict.fromkeys(numbers, JOBS))
        return late


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_what_takes_too_long_is_named(clock: Clock) -> None:
    notes: list[str] = []
    patience = Patience(10.0, notes.append)
    assert clock.look(patience, 0, turns=8) == []
    assert clock.look(patience, 0, 1, turns=3) == []
    assert clock.look(patience, 0, 1) == [0]
    assert clock.look(patience, 1, turns=6) == []
    assert clock.look(patience, 1, 0, turns=2) == [1]  # 0 has begun anew.
    assert len(notes) == 2
    assert notes[0].startswith("3, 4, 5 and 2 more: the search took longer than --group-timeout")
    assert patience.reason == "the search took longer than --group-timeout 10 s; it was ended"


def test_nothing_takes_too_long_without_a_limit(clock: Clock) -> None:
    assert clock.look(Patience(), 0, turns=10_000) == []


def test_time_in_which_this_process_was_stopped_does_not_count(clock: Clock) -> None:
    patience = Patience(10.0)
    clock.look(patience, 0)
    clock.now += 3600.0
    assert clock.look(patience, 0) == []
    assert clock.look(patience, 0, turns=6) == [0]


def test_far_longer_than_all_before_is_told_once(clock: Clock) -> None:
    notes: list[str] = []
    patience = Patience(on_note=notes.append)
    clock.look(patience, 0, turns=1000)
    assert notes == []  # Nothing to compare it with.
    patience = Patience(on_note=notes.append)
    clock.look(patience, 0, turns=20)
    clock.look(patience, 1, turns=100)
    assert notes == []
    clock.look(patience, 1, 2, turns=3)
    assert len(notes) == 1
    assert notes[0].startswith("the search for 3, 4, 5 and 2 more has taken 100 s so far, the")
    assert "longest before it 20.0 s" in notes[0]
    assert "--resume --group-timeout SECONDS" in notes[0]
    clock.look(patience, 1, 2, turns=500)
    assert len(notes) == 1
    # Who has set a limit needs no advice, and short searches vary.
    limited = Patience(10_000.0, notes.append)
    clock.look(limited, 0, turns=20)
    clock.look(limited, 1, turns=500)
    short = Patience(on_note=notes.append)
    clock.look(short, 0, turns=2)
    clock.look(short, 1, turns=50)
    assert len(notes) == 1


class Stuck(InlineExecutor):
    """An executor that never answers for a task with an image whose id begins with 2."""

    def wait(self, timeout: float) -> list[Done]:
        return [] if self.searching else super().wait(timeout)

    @property
    def searching(self) -> list[int]:
        return [d.task.number for d in self._done if any(j.id[0] == "2" for j in d.task.jobs)]

    def abort(self, number: int, *, reason: str) -> Done:
        (done,) = self._done
        self._done = []
        return Done(done.task, "here", error=reason)


def run_stuck(data: Path, out: Path, *, group_timeout: float | None) -> Run:
    return evaluate(
        fake_dataset(data),
        SETTINGS,
        plan=Plan(out, group_timeout=group_timeout, hours=1.0),
        open_executor=lambda: Stuck(MakeFake()),
    )


def test_an_image_that_hangs_fails_alone(tmp_path: Path, clock: Clock, monkeypatch) -> None:
    def wait(self: Stuck, timeout: float) -> list[Done]:
        clock.now += timeout
        return original(self, timeout)

    original = Stuck.wait
    monkeypatch.setattr(Stuck, "wait", wait)
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


def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    """The real thing: a process that does not even hear SIGTERM."""
    fake_dataset(tmp_path)
    jobs = [Job(name, "", tmp_path / f"{name}.txt") for name in ("1", "2")]
    with LocalExecutor(MakeFake(hanging=("1",))) as executor:
        executor.submit(Task(0, (jobs[0],)))
        assert executor.searching == []  # It still loads.
        while not executor.searching:
            assert executor.wait(1.0) == []
        assert executor.wait(0.2) == []
        process = executor._workers[0].process
        done = executor.abort(0, reason="too long")
        assert (done.task.number, done.found, done.error) == (0, (), "too long")
        assert process.exitcode == -9
        assert executor.num_free == 1
        with pytest.raises(ValueError, match=r"number must be one of \[\], was: 0"):
            executor.abort(0, reason="again")
        executor.submit(Task(1, (jobs[1],)))
        while not (found := executor.wait(1.0)):
            pass
        assert [one.task.number for one in found] == [1]
        assert found[0].found


def test_a_run_with_an_image_that_hangs_ends(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "_TURN", 0.1)
    run_fake(tmp_path / "data", tmp_path / "poison", MakeFake(poison=("7",)))
    run = evaluate(
        fake_dataset(tmp_path / "data"),
        SETTINGS,
        plan=Plan(tmp_path / "run", group_timeout=1.0),
        open_executor=lambda: LocalExecutor(MakeFake(hanging=("7",)), num_workers=2),
    )
    assert [key[0] for key in run.failures] == ["7"]
    assert "--group-timeout 1 s" in run.failures["7", ""].error
    assert captions_of(tmp_path / "run") == captions_of(tmp_path / "poison")
