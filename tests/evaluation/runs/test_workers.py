"""Worker processes: they work, they die and are replaced, and they end with their parent."""

import atexit
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from fuseprompt.errors import ProblemError, RunError
from fuseprompt.evaluation.runs.evaluate import caption_dataset
from fuseprompt.evaluation.runs.folder import Run
from fuseprompt.evaluation.runs.journal import read_journal
from fuseprompt.evaluation.runs.plan import Job, RunOptions
from fuseprompt.evaluation.runs.workers import (
    Answer,
    LocalWorker,
    MakeSearcher,
    describe_error,
    describe_exit,
)
from tests.evaluation.runs.fakes import (
    SETTINGS,
    Fake,
    MakeDyingOnce,
    MakeFake,
    captions_of,
    fake_dataset,
    run_fake,
)

ROOT = Path(__file__).parents[3]


def run_local(tmp_path: Path, make: MakeSearcher, *, count: int = 10, num_workers: int = 2) -> Run:
    return caption_dataset(
        fake_dataset(tmp_path / "data", count),
        SETTINGS,
        RunOptions(Path("data"), tmp_path / "run", workers=num_workers),
        open_workers=lambda: nullcontext(partial(LocalWorker, make)),
    )


@dataclass(frozen=True)
class MakeCounted:
    """Writes a line for every searcher that is made."""

    log: str

    def __call__(self, number: int) -> Fake:
        with Path(self.log).open("a") as file:
            file.write(f"{number}\n")
        return MakeFake()(number)


def test_a_worker_loads_its_models_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = run_local(tmp_path, MakeCounted(str(log)), count=30)
    assert len(run.captions) == 30  # Eight groups.
    assert sorted(log.read_text().split()) == ["0", "1"]


def test_workers_find_what_one_process_finds(tmp_path: Path) -> None:
    run_fake(tmp_path / "data", tmp_path / "alone")
    run_local(tmp_path, MakeFake())
    assert captions_of(tmp_path / "run") == captions_of(tmp_path / "alone")


def test_an_image_that_kills_its_worker_costs_no_other_its_caption(tmp_path: Path) -> None:
    run = run_local(tmp_path, MakeFake(deadly=("2",)), count=5)
    assert list(run.failures) == [("2", "")]
    assert run.failures["2", ""].error == "the worker died (exit code 9)"
    assert [run.records[key].group for key in run.captions] == [("1",), ("3",), ("4",), ("5",)]


def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    run_fake(tmp_path / "data", tmp_path / "alone")
    workers: list[LocalWorker] = []

    def start_and_kill_the_first(number: int) -> LocalWorker:
        worker = LocalWorker(MakeFake(seconds=0.2), number)
        if not workers:
            worker.ready.add_done_callback(lambda _: os.kill(worker.process.pid, signal.SIGKILL))
        workers.append(worker)
        return worker

    caption_dataset(
        fake_dataset(tmp_path / "data"),
        SETTINGS,
        RunOptions(Path("data"), tmp_path / "run"),
        open_workers=lambda: nullcontext(start_and_kill_the_first),
    )
    assert [worker.process.exitcode for worker in workers] == [-9, 0]
    assert captions_of(tmp_path / "run") == captions_of(tmp_path / "alone")


def test_a_worker_that_cannot_begin_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="ValueError: no such model"):
        run_local(tmp_path, MakeFake(broken="no such model"), num_workers=1)
    with pytest.raises(
        RunError, match=r"3 workers died while they loaded the models \(exit code 3"
    ):
        caption_dataset(
            fake_dataset(tmp_path / "data"),
            SETTINGS,
            RunOptions(Path("data"), tmp_path / "run", resume=True),
            open_workers=lambda: nullcontext(partial(LocalWorker, MakeFake(broken="dies"))),
        )


def test_a_worker_that_dies_while_loading_is_no_fault_of_its_images(tmp_path: Path) -> None:
    run = run_local(tmp_path, MakeDyingOnce(str(tmp_path / "trace")), num_workers=1)
    assert len(run.captions) == 10
    assert {record.attempt for record in run.records.values()} == {1}


def make_slow_to_leave(number: int) -> Fake:
    """Make a searcher whose process, as with torch, takes its time to end."""
    atexit.register(time.sleep, 0.5)
    return MakeFake()(number)


def test_workers_leave_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    workers = [LocalWorker(make_slow_to_leave, number) for number in range(2)]
    assert [worker.ready.result(30) for worker in workers] == ["", ""]
    for _ in range(2):  # Asked again, they are leaving already.
        for worker in workers:
            worker.stop()
    for worker in workers:
        worker.kill(after=10.0)
    assert [worker.process.exitcode for worker in workers] == [0, 0]
    assert capfd.readouterr().err == ""


def test_a_worker_that_hears_nothing_can_be_killed(tmp_path: Path) -> None:
    """The real thing: a process that does not even hear SIGTERM."""
    fake_dataset(tmp_path)
    worker = LocalWorker(MakeFake(hanging=("1",), log=str(tmp_path / "log")), 0)
    good, bad = (worker.search([Job(n, "", tmp_path / f"{n}.txt")]) for n in ("2", "1"))
    assert isinstance(good.result(30), Answer)
    for _ in range(300):  # until it ignores the signal, however busy the machine is
        if (tmp_path / "log.hangs").exists():
            break
        time.sleep(0.1)
    assert not bad.done()
    worker.stop()
    worker.kill(after=0.3)
    with pytest.raises(ChildProcessError, match="SIGKILL"):
        bad.result(10)


def test_ends_are_described_in_words() -> None:
    assert describe_exit(1) == "exit code 1"
    assert describe_exit(-9) == "SIGKILL, perhaps out of memory"
    assert describe_exit(-11) == "SIGSEGV"
    assert describe_error(ProblemError("No such thing.")) == "No such thing."
    assert describe_error(ValueError("two\nlines")) == "ValueError: two lines"


def start_script(data: Path, out: Path, *, seconds: float = 0.05) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.evaluation.runs.fakes", str(data), str(out), str(seconds)],
        env=environment,
        cwd=ROOT,
        text=True,
        start_new_session=True,
    )


def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    """Return the processes of a session that are still alive."""
    alive = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == process.pid and fields[0] != "Z":
                alive.append(int(entry.name))
    return alive


def wait_for(condition, seconds: float = 30.0) -> None:
    """Wait until something is so; fail if it is not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_wait_for_fails_in_time() -> None:
    with pytest.raises(AssertionError):
        wait_for(lambda: False, seconds=0.05)


def test_killed_and_resumed_the_captions_are_the_same(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    run_fake(data, tmp_path / "whole", count=40)
    journal = out / "journal.jsonl"
    with start_script(data, out) as process:
        wait_for(lambda: journal.exists() and journal.stat().st_size > 0)
        assert len(workers_of(process)) >= 3
        process.kill()
    wait_for(lambda: workers_of(process) == [])  # The workers have ended with it.
    assert 0 < len(read_journal(journal)) < 40
    assert not (out / "captions.jsonl").exists()
    with start_script(data, out) as process:
        assert process.wait(60) == 0
    assert captions_of(out) == captions_of(tmp_path / "whole")


@pytest.mark.slow
def test_killed_again_and_again_the_captions_are_the_same(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    run_fake(data, tmp_path / "whole", count=40)
    moments, num_kills, counts = random.Random(0), 0, [0]
    for _ in range(8):
        with start_script(data, out, seconds=0.8) as process:
            try:
                process.wait(moments.uniform(0.3, 2.0))  # Of at least four seconds' work.
                break
            except subprocess.TimeoutExpired:
                process.kill()
                num_kills += 1
        counts.append(len(read_journal(out / "journal.jsonl")))
    with start_script(data, out) as process:
        assert process.wait(60) == 0
    assert num_kills >= 2
    assert counts == sorted(counts)
    assert captions_of(out) == captions_of(tmp_path / "whole")
