"""Who does the work: one protocol, and worker processes on this machine behind it.

A worker loads the models once and then searches one group after another. What comes of a group that
fails is decided in `fuseprompt.evaluation.runs.dispatch`, and nothing here writes to a file, so
every executor resumes alike. Read next: `fuseprompt.evaluation.runs.ray_executor`, another one.
"""

import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Protocol, final, runtime_checkable

from fuseprompt.errors import FuseError, RunError
from fuseprompt.evaluation.runs.journal import Found, Key
from fuseprompt.evaluation.runs.plan import Job

#: Workers that may die, one after another, before one of them has loaded the models.
MAX_DEATHS_AT_START: Final = 3

#: Seconds that a worker has to leave in good order.
_STOP_SECONDS: Final = 5.0


@runtime_checkable
class Searcher(Protocol):
    """What a worker does with a group; made once per worker."""

    def find_faults(self, jobs: Sequence[Job]) -> Mapping[Key, str]:
        """Return why images cannot be read, by key; cheap beside a search."""
        ...

    def search(self, jobs: Sequence[Job]) -> Sequence[Found]:
        """Return a caption for each job, in order."""
        ...


#: Makes a searcher in the worker of a number, from 0; it travels there, so it must be picklable.
MakeSearcher = Callable[[int], Searcher]


@final
@dataclass(frozen=True)
class Task:
    """What a worker is asked to do.

    Attributes:
        number: Number of the task.
        jobs: What is searched together.
    """

    number: int
    jobs: tuple[Job, ...]


@final
@dataclass(frozen=True)
class Done:
    """What became of a task; exactly one of `found`, `faults` and `error` is not empty.

    Attributes:
        task: The task.
        host: The machine it was done on.
        found: A caption for each job.
        faults: Why images cannot be read, by key; nothing was searched then.
        error: Why there is nothing at all: an exception, or the death of the worker.
    """

    task: Task
    host: str
    found: tuple[Found, ...] = ()
    faults: Mapping[Key, str] = field(default_factory=dict)
    error: str = ""


@runtime_checkable
class Executor(AbstractContextManager["Executor"], Protocol):
    """Does tasks in any order, several at a time; leaving the context stops all work."""

    @property
    def num_free(self) -> int:
        """How many more tasks would be begun at once."""
        ...

    def submit(self, task: Task) -> None:
        """Begin a task; only while `num_free` is above 0."""
        ...

    def wait(self, timeout: float) -> list[Done]:
        """Return what was done since the last call; waits for the first, at most so many seconds.

        Raises:
            RunError: If no worker can be made ready.
        """
        ...

    @property
    def searching(self) -> Collection[int]:
        """Numbers of the tasks that are worked on; not those whose worker still loads models."""
        ...

    def abort(self, number: int, *, reason: str) -> Done:
        """End the worker of one of `searching`, whatever it does, and put a new one in its place.

        Args:
            number: Number of the task, which `wait` does not return any more.
            reason: Why.

        Returns:
            The task, with the reason as its error.
        """
        ...


def do_task(searcher: Searcher, task: Task) -> Done:
    """Do a task, in a worker; whatever the searcher raises is an answer too.

    Args:
        searcher: The worker's searcher.
        task: The task.

    Returns:
        What became of it.
    """
    host = platform.node()
    try:
        if faults := searcher.find_faults(task.jobs):
            return Done(task, host, faults=dict(faults))
        return Done(task, host, found=tuple(searcher.search(task.jobs)))
    except Exception as error:
        return Done(task, host, error=describe_error(error))


def describe_error(error: BaseException) -> str:
    """Return an error as one line; errors of ours are sentences already."""
    text = " ".join(str(error).split())
    return text if isinstance(error, FuseError) else f"{type(error).__name__}: {text}"


class LocalExecutor(AbstractContextManager["LocalExecutor"]):
    """Worker processes on this machine; one that dies is replaced.

    The processes are started anew, not forked: a fork of a process with a GPU or with threads of a
    linear algebra library does not work. They end when this process does, however it ends. A script
    that uses this class needs the usual `if __name__ == "__main__":`, since workers import it.

    Args:
        make_searcher: Makes the searcher of a worker, in the worker.
        num_workers: How many there are.
    """

    def __init__(self, make_searcher: MakeSearcher, *, num_workers: int = 1) -> None:
        self._make_searcher = make_searcher
        self._num_deaths_at_start = 0
        self._workers = [_Worker(make_searcher, number) for number in range(num_workers)]

    def __exit__(self, *_: object) -> None:
        """Stop all workers, in whatever they are doing."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.stop()

    @property
    def num_free(self) -> int:
        """Workers without a task."""
        return sum(worker.task is None for worker in self._workers)

    def submit(self, task: Task) -> None:
        """Give a task to a free worker."""
        free = next(worker for worker in self._workers if worker.task is None)
        free.give(task)

    def wait(self, timeout: float) -> list[Done]:
        """Return what was done since the last call; waits for the first, at most so many seconds.

        Args:
            timeout: Seconds.

        Returns:
            What was done; a task whose worker died has an error.

        Raises:
            RunError: If a worker cannot make its searcher, or workers die again and again
                meanwhile.
        """
        by_handle: dict[Any, _Worker] = {}
        for worker in self._workers:
            by_handle[worker.connection] = by_handle[worker.process.sentinel] = worker
        ready = dict.fromkeys(by_handle[handle] for handle in wait(list(by_handle), timeout))
        done = [self._listen(worker) for worker in ready]
        return [one for one in done if one is not None]

    @property
    def searching(self) -> Collection[int]:
        """Numbers of the tasks that are worked on; not those whose worker still loads models."""
        return [w.task.number for w in self._workers if w.task is not None and w.is_ready]

    def abort(self, number: int, *, reason: str) -> Done:
        """End the worker of one of `searching`, whatever it does, and put a new one in its place.

        Args:
            number: Number of the task.
            reason: Why.

        Returns:
            The task, with the reason as its error.

        Raises:
            ValueError: If it is not being searched.
        """
        for worker in self._workers:
            if worker.task is not None and worker.task.number == number:
                worker.process.kill()  # It may be deaf to anything less.
                self._renew(worker)
                return Done(worker.task, platform.node(), error=reason)
        raise ValueError(f"number must be one of {self.searching}, was: {number}.")

    def _listen(self, worker: "_Worker") -> Done | None:
        """Return what a worker says: a result, or nothing that matters."""
        try:
            said = worker.connection.recv()
        except (EOFError, OSError):
            return self._replace(worker)
        if isinstance(said, _Broken):
            raise RunError(said.error)
        if isinstance(said, _Ready):
            worker.is_ready = True
            self._num_deaths_at_start = 0
            return None
        worker.task = None
        assert isinstance(said, Done)  # Workers say nothing else.
        return said

    def _replace(self, worker: "_Worker") -> Done | None:
        """Put a new worker in the place of a dead one; return what became of its task."""
        worker.process.join()
        cause = describe_exit(worker.process.exitcode)
        if not worker.is_ready:
            self._num_deaths_at_start += 1
            if self._num_deaths_at_start >= MAX_DEATHS_AT_START:
                raise RunError(
                    f"{self._num_deaths_at_start} workers died while they loaded the models "
                    f"({cause}). Use fewer workers, smaller models, or a machine with more memory."
                )
        fresh = self._renew(worker)
        if worker.task is None:
            return None
        if not worker.is_ready:  # It never began: the task is not to blame.
            fresh.give(worker.task)
            return None
        return Done(worker.task, platform.node(), error=f"the worker died ({cause})")

    def _renew(self, worker: "_Worker") -> "_Worker":
        """Put a new worker in the place of one that has ended or is to end, and return it."""
        worker.stop()
        fresh = _Worker(self._make_searcher, worker.number)
        self._workers[self._workers.index(worker)] = fresh
        return fresh


def describe_exit(code: int | None) -> str:
    """Return in words how a process ended."""
    if code is None or code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, perhaps out of memory" if name == "SIGKILL" else name


@final
@dataclass(frozen=True)
class _Ready:
    """Said by a worker that has made its searcher."""


@final
@dataclass(frozen=True)
class _Broken:
    """Said by a worker that cannot make its searcher."""

    error: str


class _Worker:
    """A process and what it is doing."""

    def __init__(self, make_searcher: MakeSearcher, number: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.number = number
        self.task: Task | None = None
        self.is_ready = False
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, make_searcher, number), daemon=True
        )
        self.process.start()
        theirs.close()  # Then the end of the process ends the connection.

    def give(self, task: Task) -> None:
        self.task = task
        with suppress(OSError):  # A worker that has just died is noticed by `wait`.
            self.connection.send(task)

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(_STOP_SECONDS)
        self.process.kill()
        # One that waits for a dead disk or driver cannot even be killed; the others work on.
        self.process.join(_STOP_SECONDS)
        self.connection.close()


def _serve(connection: Connection, make_searcher: MakeSearcher, number: int) -> None:
    """Make a searcher and do tasks until the connection ends; the main function of a worker."""
    # Ctrl-C reaches every process of the terminal; the main one decides and stops this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        searcher = make_searcher(number)
    except Exception as error:
        connection.send(_Broken(describe_error(error)))
        return
    connection.send(_Ready())
    with suppress(EOFError, OSError):
        while True:
            connection.send(do_task(searcher, connection.recv()))


def _leave(number: int, _frame: object) -> None:
    """End this process; what it holds of the system is given back."""
    signal.signal(number, signal.SIG_IGN)  # Asked again, it is leaving already.
    raise SystemExit(0)


def _end_with_parent() -> None:
    """End this process as soon as its parent is gone, even by kill -9."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # A worker always has one.
    wait([parent.sentinel])
    os._exit(1)
