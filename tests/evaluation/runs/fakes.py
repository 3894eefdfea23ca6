"""A searcher that costs nothing, for runs in which only matters how what is found is kept.

Its captions depend on the image, and on what is searched together, so a run that groups images
otherwise after a kill shows. Run as a script it captions a folder, to be killed.
"""

import hashlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from fuseprompt.evaluation.datasets.base import Dataset, Item, make_dataset
from fuseprompt.evaluation.runs.evaluate import Plan, evaluate
from fuseprompt.evaluation.runs.executors import Done, LocalExecutor, MakeSearcher, Task, do_task
from fuseprompt.evaluation.runs.folder import Run, RunSettings
from fuseprompt.evaluation.runs.journal import Found, Key
from fuseprompt.evaluation.runs.plan import Job

SETTINGS = RunSettings(
    dataset="folder",
    split="all",
    fingerprint="f",
    models={"lm": "fake"},
    revisions={"lm": "1"},
    search={"steps": 3},
    group_size=4,
    seed=0,
    device="cpu",
    threads=1,
)


@dataclass(frozen=True)
class MakeFake:
    """Makes the searcher.

    Ids in `poison` fail in a search, those in `deadly` kill the worker, those in `hanging` never
    end and keep the worker deaf to SIGTERM.
    """

    seconds: float = 0.0
    poison: tuple[str, ...] = ()
    deadly: tuple[str, ...] = ()
    hanging: tuple[str, ...] = ()
    log: str = ""
    broken: str = ""

    def __call__(self, number: int) -> "Fake":
        if self.broken == "dies":
            os._exit(3)
        if self.broken:
            raise ValueError(self.broken)
        return Fake(self)


class Fake:
    """A searcher whose images are text files; an empty one cannot be read."""

    def __init__(self, make: MakeFake) -> None:
        self._make = make

    def find_faults(self, jobs: Sequence[Job]) -> dict[Key, str]:
        return {
            job.key: f"{job.image.name} cannot be read."
            for job in jobs
            if not job.image.is_file() or not job.image.read_text()
        }

    def search(self, jobs: Sequence[Job]) -> list[Found]:
        if self._make.log:
            with Path(self._make.log).open("a") as file:
                file.write(" ".join(job.id for job in jobs) + "\n")
        time.sleep(self._make.seconds)
        for job in jobs:
            if job.id in self._make.poison:
                raise ValueError(f"{job.id} is poison")
            if job.id in self._make.deadly:
                os._exit(9)
            if job.id in self._make.hanging:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                while True:
                    time.sleep(60.0)
        together = ",".join(job.id for job in jobs)
        return [found(f"{job.image.read_text()} {together} {job.sentiment}") for job in jobs]


@dataclass(frozen=True)
class MakeDyingOnce:
    """Kills the first worker that makes a searcher, which leaves a file."""

    trace: str

    def __call__(self, number: int) -> Fake:
        if not Path(self.trace).exists():
            Path(self.trace).touch()
            os._exit(3)
        return MakeFake()(number)


def found(text: str) -> Found:
    """Return what a search might find."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    return Found(
        caption=f"A {text}.",
        text=f"An image of a {text}.",
        token_ids=tuple(digest[:5]),
        loss=digest[0] / 7,
        terms={"fluency": digest[1] / 7, "image": digest[2] / 7},
        finished=True,
        curve=(3.0, 2.0, digest[0] / 7),
        seconds=0.25,
    )


class InlineExecutor(AbstractContextManager["InlineExecutor"]):
    """Does every task at once, in this process; takes the place of any executor."""

    def __init__(self, make: MakeSearcher, **_: object) -> None:
        self._searcher = make(0)
        self._done: list[Done] = []

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def num_free(self) -> int:
        return int(not self._done)

    @property
    def searching(self) -> Sequence[int]:
        return ()

    def abort(self, number: int, *, reason: str) -> Done:
        raise AssertionError("nothing is worked on between two calls")

    def submit(self, task: Task) -> None:
        self._done.append(do_task(self._searcher, task))

    def wait(self, timeout: float) -> list[Done]:
        done, self._done = self._done, []
        return done


def fake_dataset(folder: Path, count: int = 10) -> Dataset:
    """Write images that are text files, "1" to the count."""
    folder.mkdir(exist_ok=True)
    items = []
    for number in range(1, count + 1):
        image = folder / f"{number}.txt"
        if not image.exists():
            image.write_text(f"thing {number}")
        items.append(Item(str(number), image))
    return make_dataset("folder", "all", items=items)


def run_fake(
    data: Path, out: Path, make: MakeFake | None = None, *, count: int = 10, **options: object
) -> Run:
    """Caption fake images in this process; options are those of a `Plan`."""
    settings = options.pop("settings", SETTINGS)
    plan = replace(Plan(out), **options)
    return evaluate(
        fake_dataset(data, count),
        settings,
        plan=plan,
        open_executor=lambda: InlineExecutor(make or MakeFake()),
    )


def captions_of(folder: Path) -> bytes:
    return (folder / "captions.jsonl").read_bytes()


def main() -> None:
    """Caption `argv[1]` into `argv[2]` with two workers, `argv[3]` seconds for each group."""
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    make = MakeFake(seconds=float(sys.argv[3]))
    evaluate(
        fake_dataset(data, 40),
        SETTINGS,
        plan=Plan(out, resume=True),
        open_executor=lambda: LocalExecutor(make, num_workers=2),
    )


if __name__ == "__main__":
    main()
