"""Workers on a Ray cluster: one actor per worker, each with its models and its share of a GPU.

Ray Core alone is used, not Ray Data, which keeps nothing of a job that fails and hangs on small
machines (docs/runs.md). Retries and results are ours, so a run on Ray resumes like any other, by
any executor. Ray is the extra `ray`. Read next: `fuseprompt.evaluation.runs.dispatch`.
"""

import os
import platform
from collections.abc import Collection
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any, final

from fuseprompt.errors import RunError
from fuseprompt.evaluation.runs.executors import (
    MAX_DEATHS_AT_START,
    Done,
    MakeSearcher,
    Task,
    describe_error,
    do_task,
)


def check_ray() -> None:
    """Check that Ray is installed, without starting it.

    Raises:
        RunError: If it is not.
    """
    if find_spec("ray") is None:
        raise RunError(
            'The package ray is not installed. Install it (240 MB): pip install "fuseprompt[ray]".'
        )


@final
class RayExecutor(AbstractContextManager["RayExecutor"]):
    """Actors of a Ray cluster; one that dies is replaced.

    With the environment variable RAY_ADDRESS it joins that cluster, else it starts a cluster on
    this machine and ends it again.

    Args:
        make_searcher: Makes the searcher of a worker, in the worker.
        num_workers: How many actors there are.
        threads: CPUs of each actor.
        gpus: Share of a GPU of each actor; 0 for none.

    Raises:
        RunError: If Ray is not installed, or its cluster cannot be used.
    """

    def __init__(
        self, make_searcher: MakeSearcher, *, num_workers: int, threads: int, gpus: float
    ) -> None:
        # Nothing about a run is told to anyone.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        check_ray()
        import ray

        self._ray: Any = ray
        self._idle: list[_Worker] = []
        self._running: dict[Any, tuple[_Worker, Task]] = {}
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            _connect(ray, num_workers * threads)
        wanted = {"CPU": float(num_workers * threads), "GPU": num_workers * gpus}
        there = ray.cluster_resources()
        for kind, count in wanted.items():
            if count > there.get(kind, 0.0) + 1e-6:
                self.__exit__()
                raise RunError(
                    f"The Ray cluster has {there.get(kind, 0.0):g} {kind}s; {num_workers} workers "
                    f"need {count:g}. Use fewer --workers or --threads, or smaller "
                    "--gpus-per-worker."
                )
        # Ray restarts no actor and repeats nothing: what a dead one was doing is ours to repeat,
        # and Ray's restarts would not tell when one has loaded its models.
        self._actor: Any = ray.remote(_Actor).options(
            num_cpus=threads, num_gpus=gpus, max_restarts=0, max_task_retries=0
        )
        self._make_searcher = make_searcher
        self._idle += [self._make_worker() for _ in range(num_workers)]
        self._most_deaths = MAX_DEATHS_AT_START * num_workers
        self._num_deaths_at_start = 0

    def __exit__(self, *_: object) -> None:
        """End the cluster, if it is ours, or else the actors."""
        if self._owns_cluster:
            self._ray.shutdown()
            return
        for worker in [*self._idle, *(worker for worker, _ in self._running.values())]:
            self._ray.kill(worker.actor)

    @property
    def num_free(self) -> int:
        """Actors without a task."""
        return len(self._idle)

    def submit(self, task: Task) -> None:
        """Give a task to a free actor."""
        worker = self._idle.pop()
        self._running[worker.actor.do.remote(task)] = (worker, task)

    def wait(self, timeout: float) -> list[Done]:
        """Return what was done since the last call; waits for the first, at most so many seconds.

        Args:
            timeout: Seconds.

        Returns:
            What was done; a task whose actor died has an error.

        Raises:
            RunError: If an actor cannot make its searcher, or actors die again and again meanwhile.
        """
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        done = [self._result(reference, *self._running.pop(reference)) for reference in ready]
        return [one for one in done if one is not None]

    @property
    def searching(self) -> Collection[int]:
        """Numbers of the tasks that are worked on; not those whose actor still loads models."""
        return [
            task.number
            for worker, task in self._running.values()
            if self._ray.wait([worker.loaded], timeout=0)[0]
        ]

    def abort(self, number: int, *, reason: str) -> Done:
        """End the actor of one of `searching`, whatever it does, and put a new one in its place.

        Args:
            number: Number of the task.
            reason: Why.

        Returns:
            The task, with the reason as its error.

        Raises:
            ValueError: If it is not being searched.
        """
        for reference, (worker, task) in self._running.items():
            if task.number == number:
                del self._running[reference]
                self._ray.kill(worker.actor)
                self._idle.append(self._make_worker())
                return Done(task, platform.node(), error=reason)
        raise ValueError(f"number must be one of {self.searching}, was: {number}.")

    def _make_worker(self) -> "_Worker":
        return _Worker(self._actor.remote(self._make_searcher))

    def _result(self, reference: Any, worker: "_Worker", task: Task) -> Done | None:
        """Return what became of a task, or nothing if its actor died before it began."""
        if self._is_dead(reference):
            return self._replace(worker, task)
        self._idle.append(worker)
        self._num_deaths_at_start = 0
        result = self._ray.get(reference)
        if isinstance(result, str):
            raise RunError(result)
        assert isinstance(result, Done)  # An actor answers nothing else.
        return result

    def _replace(self, worker: "_Worker", task: Task) -> Done | None:
        """Put a new actor in the place of a dead one; return what became of its task."""
        self._ray.kill(worker.actor)  # One that could only not be reached lives on else.
        self._idle.append(self._make_worker())
        if not self._is_dead(worker.loaded):
            return Done(task, platform.node(), error="the worker died")
        self._num_deaths_at_start += 1
        if self._num_deaths_at_start >= self._most_deaths:
            raise RunError(
                f"{self._num_deaths_at_start} actors died while they loaded the models. Use fewer "
                "workers, smaller models, or machines with more memory."
            )
        self.submit(task)  # It never began: the task is not to blame.
        return None

    def _is_dead(self, reference: Any) -> bool:
        """Return whether an actor died before it gave the answer of a reference that is ready."""
        errors = self._ray.exceptions
        try:
            self._ray.get(reference)
        except (errors.RayActorError, errors.WorkerCrashedError):
            return True
        return False


class _Worker:
    """An actor, and the answer that it has loaded its models."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.loaded = actor.load.remote()


class _Actor:
    """What runs on the cluster; it does in order what it is asked to, so it loads first."""

    def __init__(self, make_searcher: MakeSearcher) -> None:
        self._make_searcher = make_searcher
        self._searcher: Any = None
        self._error = ""

    def load(self) -> None:
        """Make the searcher; a fault is the answer to every task."""
        try:
            # Ray shows an actor only its own GPUs, so each is the first.
            self._searcher = self._make_searcher(0)
        except Exception as error:
            self._error = describe_error(error)

    def do(self, task: Task) -> Done | str:
        """Return what became of a task, or why no searcher can be made."""
        return self._error or do_task(self._searcher, task)


def _connect(ray: Any, num_cpus: int) -> None:
    """Join the cluster of RAY_ADDRESS, or start one here.

    Raises:
        RunError: If neither can be done.
    """
    # "local": otherwise Ray takes whatever cluster was last started on this machine, even a dead
    # one. Workers wait for this process and send it kilobytes: they need neither more nor less.
    ours = {
        "address": "local",
        "include_dashboard": False,
        "num_cpus": num_cpus,
        "object_store_memory": 100_000_000,
    }
    address = os.environ.get("RAY_ADDRESS")
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
