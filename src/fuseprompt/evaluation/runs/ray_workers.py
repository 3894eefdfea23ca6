"""Workers on a Ray cluster: one actor per worker, each with its models and its share of a GPU.

Ray Core alone is used, not Ray Data, which keeps nothing of a job that fails and hangs on small
machines (docs/evaluating.md). Retries and results are ours, so a run on Ray resumes like any other.
Ray is the extra `ray`. Read next: `fuseprompt.evaluation.runs.dispatch`.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, final

from fuseprompt.errors import RunError
from fuseprompt.evaluation.runs.plan import Job
from fuseprompt.evaluation.runs.workers import (
    Answer,
    MakeSearcher,
    StartWorker,
    describe_error,
    do_jobs,
)


def check_ray() -> None:
    """Refuse to go on if Ray is not installed, without starting it."""
    if find_spec("ray") is None:
        raise RunError(
            'The package ray is not installed. Install it (240 MB): pip install "fuseprompt[ray]".'
        )


@contextmanager
def ray_workers(
    make_searcher: MakeSearcher, *, num_workers: int, threads: int, gpus: float
) -> Iterator[StartWorker]:
    """Start workers on the cluster of RAY_ADDRESS, or on one of its own on this machine.

    Args:
        make_searcher: Makes the searcher of a worker, in the worker.
        num_workers: How many workers there will be at a time.
        threads: CPUs of each.
        gpus: Share of a GPU of each; 0 for none.

    Yields:
        The function that starts one.

    Raises:
        RunError: If Ray is not installed, or its cluster cannot be used.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Nothing about a run is sent to anyone.
    check_ray()
    import ray

    owns_cluster = not ray.is_initialized()
    if owns_cluster:
        _connect(ray, num_workers * threads)
    try:
        there = ray.cluster_resources()
        for kind, count in {"CPU": num_workers * threads, "GPU": num_workers * gpus}.items():
            if count > there.get(kind, 0.0) + 1e-6:
                raise RunError(
                    f"The Ray cluster has {there.get(kind, 0.0):g} {kind}s; {num_workers} workers "
                    f"need {count:g}. Use fewer --workers or --threads, or smaller "
                    "--gpus-per-worker."
                )
        # Ray restarts no actor and repeats nothing: what a dead one was doing is ours to repeat,
        # and Ray's restarts would not tell when one has loaded its models.
        actor = ray.remote(_Actor).options(
            num_cpus=threads, num_gpus=gpus, max_restarts=0, max_task_retries=0
        )
        # Ray shows an actor only its own GPUs, so each is the first.
        yield lambda _: _RayWorker(ray, actor.remote(make_searcher, 0))
    finally:
        if owns_cluster:
            ray.shutdown()


@final
class _RayWorker:
    """An actor as a worker."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.ready: Future[str] = actor.load.remote().future()

    def search(self, jobs: Sequence[Job]) -> "Future[Answer]":
        answer: Future[Answer] = self._actor.search.remote(jobs).future()
        return answer

    def stop(self) -> None:
        self._ray.kill(self._actor)

    def kill(self, *, after: float = 0.0) -> None:
        # One that is dead for sure, or that only could not be reached and would live on.
        self._ray.kill(self._actor)


class _Actor:
    """The worker on the cluster; it does in order what it is asked to, so it loads first."""

    def __init__(self, make_searcher: MakeSearcher, number: int) -> None:
        self._make_searcher, self._number = make_searcher, number
        self._searcher: Any = None

    def load(self) -> str:
        try:
            self._searcher = self._make_searcher(self._number)
        except Exception as error:
            return describe_error(error)
        return ""

    def search(self, jobs: Sequence[Job]) -> Answer:
        return do_jobs(self._searcher, jobs)


def _connect(ray: Any, num_cpus: int) -> None:
    """Join the cluster of RAY_ADDRESS, or start one here."""
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
