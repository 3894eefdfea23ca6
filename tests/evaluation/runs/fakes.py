"""A searcher that costs nothing, for runs in which only matters how what is found is kept.

Its captions depend on the image, and on what is searched together, so a run that groups images
otherwise after a kill shows. Run as a script it captions a folder, to be killed.
"""

import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fuseprompt.evaluation.datasets.base import Dataset, Item, make_dataset
from fuseprompt.evaluation.runs.evaluate import caption_dataset
from fuseprompt.evaluation.runs.folder import Run, RunSettings
from fuseprompt.evaluation.runs.journal import Found, Key
from fuseprompt.evaluation.runs.plan import Job, RunOptions
from fuseprompt.evaluation.runs.workers import (
    Answer,
    LocalWorker,
    MakeSearcher,
    StartWorker,
    do_jobs,
)

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
                if self._make.log:
                    Path(f"{self._make.log}.hangs").touch()
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
        seconds=0.25,
    )


def done(value: object) -> "Future[object]":
    """Return a future with a value."""
    future: Future[object] = Future()
    future.set_result(value)
    return future


class InlineWorker:
    """Searches at once, in this process; takes the place of any worker."""

    def __init__(self, make: MakeSearcher, number: int) -> None:
        self._searcher = make(number)
        self.ready = done("")

    def search(self, jobs: Sequence[Job]) -> "Future[Answer]":
        return done(do_jobs(self._searcher, jobs))

    def stop(self) -> None:
        pass

    def kill(self, *, after: float = 0.0) -> None:
        pass


@contextmanager
def inline_workers(make: MakeSearcher, **_: object) -> Iterator[StartWorker]:
    """Start workers in this process."""
    yield lambda number: InlineWorker(make, number)


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
    """Caption fake images in this process; options are `RunOptions`."""
    settings = options.pop("settings", SETTINGS)
    chosen = RunOptions(data, out, **options)
    return caption_dataset(
        fake_dataset(data, count),
        settings,
        chosen,
        open_workers=lambda: inline_workers(make or MakeFake()),
    )


def captions_of(folder: Path) -> bytes:
    return (folder / "captions.jsonl").read_bytes()


def main() -> None:
    """Caption `argv[1]` into `argv[2]` with two workers, `argv[3]` seconds for each group."""
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    make = MakeFake(seconds=float(sys.argv[3]))
    caption_dataset(
        fake_dataset(data, 40),
        SETTINGS,
        RunOptions(Path("data"), out, resume=True, workers=2),
        open_workers=lambda: nullcontext(partial(LocalWorker, make)),
    )


if __name__ == "__main__":
    main()
