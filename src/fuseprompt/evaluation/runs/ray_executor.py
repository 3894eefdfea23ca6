"""Workers on a Ray cluster: one actor per worker, each with its models and its share of a GPU.

Ray Core alone is used, not Ray Data, which keeps nothing of a job that fails and hangs on small
machines (docs/runs.md). Retries and results are ours, so a run on Ray resumes like any other, by
any executor. Ray is the extra `ray`. Read next: `fuseprompt.evaluation.runs.dispatch`.
"""

import os
import platform
from contextlib import AbstractContextManager
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


@final
class RayExecutor(AbstractContextManager["RayExecutor"]):
    """Actors of a Ray cluster; one that dies is started again by Ray.

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
        try:
            import ray
        except ImportError:
            raise RunError(
                "The package ray is not installed. Install it (240 MB): pip install "
                '"fuseprompt[ray]".'
            ) from None
        self._ray: Any = ray
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
        # With max_restarts an actor that dies is made anew; what it was doing is ours to repeat.
        actor = ray.remote(_Actor).options(
            num_cpus=threads, num_gpus=gpus, max_restarts=-1, max_task_retries=0
        )
        self._idle = [actor.remote(make_searcher) for _ in range(num_workers)]
        self._running: dict[Any, tuple[Any, Task]] = {}
        self._most_deaths = MAX_DEATHS_AT_START * num_workers
        self._num_deaths, self._has_worked = 0, False

    def __exit__(self, *_: object) -> None:
        """End the cluster, if it is ours, or else the actors."""
        if self._owns_cluster:
            self._ray.shutdown()
            return
        for actor in [*self._idle, *(actor for actor, _ in self._running.values())]:
            self._ray.kill(actor)

    @property
    def num_free(self) -> int:
        """Actors without a task."""
        return len(self._idle)

    def submit(self, task: Task) -> None:
        """Give a task to a free actor."""
        actor = self._idle.pop()
        self._running[actor.do.remote(task)] = (actor, task)

    def wait(self, timeout: float) -> list[Done]:
        """Return what was done since the last call; waits for the first, at most so many seconds.

        Args:
            timeout: Seconds.

        Returns:
            What was done; a task whose actor died has an error.

        Raises:
            RunError: If an actor cannot make its searcher, or all die before one has.
        """
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        done = []
        for reference in ready:
            actor, task = self._running.pop(reference)
            self._idle.append(actor)
            done.append(self._result(reference, task))
        return done

    def _result(self, reference: Any, task: Task) -> Done:
        errors = self._ray.exceptions
        try:
            result = self._ray.get(reference)
        except (errors.RayActorError, errors.WorkerCrashedError):
            self._num_deaths += 1
            if not self._has_worked and self._num_deaths >= self._most_deaths:
                raise RunError(
                    f"{self._num_deaths} actors died before one did anything. Use fewer workers, "
                    "smaller models, or machines with more memory."
                ) from None
            return Done(task, platform.node(), error="the worker died")
        if isinstance(result, str):
            raise RunError(result)
        self._has_worked = True
        assert isinstance(result, Done)  # An actor answers nothing else.
        return result


class _Actor:
    """A worker; its searcher is made at the first task, so that a fault there is an answer."""

    def __init__(self, make_searcher: MakeSearcher) -> None:
        self._make_searcher = make_searcher
        self._searcher: Any = None

    def do(self, task: Task) -> Done | str:
        """Return what became of a task, or why no searcher can be made."""
        if self._searcher is None:
            try:
                # Ray shows an actor only its own GPUs, so each is the first.
                self._searcher = self._make_searcher(0)
            except Exception as error:
                return describe_error(error)
        return do_task(self._searcher, task)


def _connect(ray: Any, num_cpus: int) -> None:
    """Join the cluster of RAY_ADDRESS, or start one here.

    Raises:
        RunError: If neither can be done.
    """
    options: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False}
    if "RAY_ADDRESS" not in os.environ:
        # Workers wait for this process and send it kilobytes: they need neither more nor less.
        options |= {"num_cpus": num_cpus, "object_store_memory": 100_000_000}
    else:
        options = {"log_to_driver": False}
    try:
        ray.init(**options)
    except Exception as error:
        raise RunError(f"Ray cannot be used ({describe_error(error)}).") from None
