"""Workers: processes here or actors of a Ray cluster, which search one group after another.

A worker loads the models once and answers by futures, wherever it runs. Nothing here writes to a
file, so a run on any kind of worker resumes alike.
"""

import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Protocol, final, runtime_checkable

from fuseprompt.errors import FuseError, RunError
from fuseprompt.evaluation.runs.journal import Found, Key
from fuseprompt.evaluation.runs.plan import Job

#: Seconds that a worker has to leave in good order.
STOP_SECONDS: Final = 5.0


@runtime_checkable
class Searcher(Protocol):
    """The work of a worker."""

    def find_faults(self, jobs: Sequence[Job]) -> Mapping[Key, str]:
        """Return why images cannot be read, by key; cheap compared with a search."""

    def search(self, jobs: Sequence[Job]) -> Sequence[Found]:
        """Return a caption for each job, in order."""


#: Makes a searcher in the worker of a number, from 0; it travels there, so it must be picklable.
MakeSearcher = Callable[[int], Searcher]


@final
@dataclass(frozen=True)
class Answer:
    """Captions of a group; or why images cannot be read, by key; or why its search failed."""

    host: str
    found: tuple[Found, ...] = ()
    faults: Mapping[Key, str] = field(default_factory=dict)
    error: str = ""


@runtime_checkable
class Worker(Protocol):
    """A process that makes a searcher; if it dies, its futures have an exception."""

    @property
    def ready(self) -> "Future[str]":
        """The end of loading: "", or why no searcher can be made."""

    def search(self, jobs: Sequence[Job]) -> "Future[Answer]":
        """Begin the search of a group."""

    def stop(self) -> None:
        """Ask the worker to leave, whatever it is doing."""

    def kill(self, *, after: float = 0.0) -> None:
        """End the worker, if need be by force after so many seconds."""


#: Starts the worker of a number, from 0.
StartWorker = Callable[[int], Worker]


def do_jobs(searcher: Searcher, jobs: Sequence[Job]) -> Answer:
    """Search a group, in a worker; whatever the searcher raises is an answer too."""
    host = platform.node()
    try:
        if faults := searcher.find_faults(jobs):
            return Answer(host, faults=dict(faults))
        return Answer(host, found=tuple(searcher.search(jobs)))
    except Exception as error:
        return Answer(host, error=describe_error(error))


def describe_error(error: BaseException) -> str:
    """Return an error as one line; errors of ours are sentences already."""
    text = " ".join(str(error).split())
    return text if isinstance(error, FuseError) else f"{type(error).__name__}: {text}"


def describe_exit(code: int | None) -> str:
    """Return in words how a process ended."""
    if code is None or code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, perhaps out of memory" if name == "SIGKILL" else name


# --- processes ------------------------------------------------------------------------------------


@final
class LocalWorker:
    """A process on this machine; it ends when this process does, however that ends.

    It is started anew, since no process with a GPU or with threads of a library can be forked. A
    script that uses it needs the usual `if __name__ == "__main__":`.
    """

    def __init__(self, make_searcher: MakeSearcher, number: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, make_searcher, number), daemon=True
        )
        self.process.start()
        theirs.close()  # Then the end of the process ends the connection.
        self._listener = ThreadPoolExecutor(1)
        self.ready: Future[str] = self._listener.submit(self._receive)

    def search(self, jobs: Sequence[Job]) -> "Future[Answer]":
        """Begin the search of a group."""
        return self._listener.submit(self._ask, jobs)

    def stop(self) -> None:
        """Ask the worker to leave, whatever it is doing."""
        self.process.terminate()

    def kill(self, *, after: float = 0.0) -> None:
        """End the worker, if need be by force after so many seconds."""
        self.process.join(after)
        self.process.kill()
        # One that waits for a dead disk or driver cannot even be killed; the others work on.
        self.process.join(STOP_SECONDS)
        self._listener.shutdown(wait=False, cancel_futures=True)

    def _ask(self, jobs: Sequence[Job]) -> Any:
        with suppress(OSError):  # A worker that has just died is noticed by what follows.
            self._connection.send(jobs)
        return self._receive()

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            self.process.join()
            raise ChildProcessError(describe_exit(self.process.exitcode)) from None


def _serve(connection: Connection, make_searcher: MakeSearcher, number: int) -> None:
    """Make a searcher and search until the connection ends."""
    # Ctrl-C reaches every process of the terminal; the main one decides and stops this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        searcher = make_searcher(number)
    except Exception as error:
        connection.send(describe_error(error))
        return
    connection.send("")
    with suppress(EOFError, OSError):
        while True:
            connection.send(do_jobs(searcher, connection.recv()))


def _leave(number: int, _frame: object) -> None:
    """End this process in good order."""
    signal.signal(number, signal.SIG_IGN)  # Asked again, it is leaving already.
    raise SystemExit(0)


def _end_with_parent() -> None:
    """End this process as soon as its parent is gone, even by kill -9."""
    if parent := multiprocessing.parent_process():
        wait([parent.sentinel])
    os._exit(1)


# --- Ray ------------------------------------------------------------------------------------------


def check_ray() -> None:
    """Refuse to go on if Ray, the extra `ray`, is not installed; do not start it."""
    if find_spec("ray") is None:
        raise RunError(
            'The package ray is not installed. Install it (240 MB): pip install "fuseprompt[ray]".'
        )


@contextmanager
def ray_workers(
    make_searcher: MakeSearcher, *, num_workers: int, threads: int, gpu: bool
) -> Iterator[StartWorker]:
    """Yield what starts an actor on the cluster of RAY_ADDRESS, or on one of its own here.

    Ray Core alone is used: Ray Data keeps nothing of a job that fails and hangs on small machines.
    With `gpu` each worker has a GPU.

    Raises:
        RunError: If Ray is not installed, or its cluster cannot be used.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Nothing about a run is sent to anyone.
    check_ray()
    import ray

    _connect(ray, num_workers * threads)
    try:
        there = ray.cluster_resources()
        for kind, count in {"CPU": num_workers * threads, "GPU": num_workers * gpu}.items():
            if count > there.get(kind, 0.0):
                raise RunError(
                    f"The Ray cluster has {there.get(kind, 0.0):g} {kind}s; {num_workers} workers "
                    f"need {count}. Use fewer --workers or --threads."
                )
        # The dispatcher repeats what a dead actor was doing; Ray's restarts would hide its death.
        actor = ray.remote(_Actor).options(
            num_cpus=threads, num_gpus=int(gpu), max_restarts=0, max_task_retries=0
        )
        yield lambda _: _RayWorker(ray, actor.remote(), make_searcher)
    finally:
        ray.shutdown()


@final
class _RayWorker:
    def __init__(self, ray: Any, actor: Any, make_searcher: MakeSearcher) -> None:
        self._ray, self._actor = ray, actor
        self.ready: Future[str] = actor.load.remote(make_searcher).future()

    def search(self, jobs: Sequence[Job]) -> "Future[Answer]":
        answer: Future[Answer] = self._actor.search.remote(jobs).future()
        return answer

    def stop(self) -> None:
        self._ray.kill(self._actor)

    def kill(self, *, after: float = 0.0) -> None:
        # One that is dead for sure, or that only could not be reached and would live on.
        self._ray.kill(self._actor)


class _Actor:
    """The worker on the cluster; it loads first, since it keeps the order of its calls."""

    _searcher: Searcher

    def load(self, make_searcher: MakeSearcher) -> str:
        try:
            self._searcher = make_searcher(0)  # Ray shows an actor only its own GPUs.
        except Exception as error:
            return describe_error(error)
        return ""

    def search(self, jobs: Sequence[Job]) -> Answer:
        return do_jobs(self._searcher, jobs)


def _connect(ray: Any, num_cpus: int) -> None:
    address = os.environ.get("RAY_ADDRESS")
    # "local": otherwise Ray takes whatever cluster was last started on this machine, even a dead
    # one. Workers wait for this process and send it kilobytes: they need neither more nor less.
    ours = {
        "address": "local",
        "include_dashboard": False,
        "num_cpus": num_cpus,
        "object_store_memory": 100_000_000,
    }
    try:
        ray.init(log_to_driver=False, **({} if address else ours))
    except Exception as error:
        remedy = (
            f" RAY_ADDRESS is {address}: is there a cluster? One that wants a token, as by default "
            "with Ray 2.60, also needs RAY_AUTH_MODE=token here, and its token in ~/.ray."
        )
        raise RunError(
            f"Ray cannot be used ({describe_error(error)}).{remedy if address else ''}"
        ) from None
