"""Hands groups to workers and decides what becomes of faults.

A group that fails is tried `MAX_ATTEMPTS` times. Then images that cannot be read are left out and
the others are searched together; if the search itself failed or killed its worker, each image is
searched alone: a bad image costs no other its caption.
"""

import platform
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, final

from fuseprompt.errors import RunError
from fuseprompt.evaluation.runs.folder import RunSettings
from fuseprompt.evaluation.runs.journal import Found, Key, Record
from fuseprompt.evaluation.runs.plan import Group, Job, RunOptions, is_done
from fuseprompt.evaluation.runs.workers import STOP_SECONDS, Answer, StartWorker

#: How often a group is tried in one run of the program.
MAX_ATTEMPTS: Final = 3

#: Workers per place that may die, one after another, before one of them has loaded the models.
MAX_DEATHS_AT_START: Final = 3

#: Seconds after which the caller gets a turn, even if nothing is done.
_TURN: Final = 1.0


def dispatch(
    groups: Sequence[Group],
    start_worker: StartWorker,
    settings: RunSettings,
    options: RunOptions,
    known: Mapping[Key, Record],
) -> Generator[list[Record], None, None]:
    """Search groups until all images have a caption or have failed for good; end all workers.

    `known` is the newest record of each key from earlier runs.

    Yields:
        Records of a group as it finishes; none about once a second, so that the caller can stop.

    Raises:
        RunError: If a worker cannot make its searcher, or workers die again and again meanwhile.
    """
    waiting = deque(_Task(group) for group in groups)
    num_places = min(options.workers or 1, len(waiting))
    places = [_Place(start_worker, number) for number in range(num_places)]
    num_deaths = 0
    try:
        while waiting or any(place.task for place in places):
            for place in places:
                if place.task is None and waiting:
                    place.begin(waiting.popleft())
            busy = [place for place in places if place.task is not None]
            wait([place.answer for place in busy], _TURN, return_when=FIRST_COMPLETED)
            ended = [place for place in busy if place.answer.done()]
            if not ended:
                yield []
            for place in ended:
                task = place.task
                answer = place.end()
                assert task is not None  # Busy places have one.
                if answer is not None:
                    num_deaths = 0
                    records, further = _settle(task, answer, settings, known)
                    waiting.extend(further)
                    yield records
                    continue
                waiting.appendleft(task)  # It never began: the task is not to blame.
                num_deaths += 1
                if num_deaths >= MAX_DEATHS_AT_START * len(places):
                    raise RunError(
                        f"{num_deaths} workers died while they loaded the models ({place.death}). "
                        "Use fewer workers, smaller models, or a machine with more memory."
                    )
    finally:
        for place in places:
            place.worker.stop()
        for place in places:
            place.worker.kill(after=STOP_SECONDS)


@final
@dataclass(frozen=True)
class _Task:
    """Jobs that are searched together, how often they were tried, and may still fail."""

    jobs: tuple[Job, ...]
    num_tries: int = 0
    num_left: int = MAX_ATTEMPTS


def _settle(
    task: _Task, answer: Answer, settings: RunSettings, known: Mapping[Key, Record]
) -> tuple[list[Record], list[_Task]]:
    """Return what is to be recorded of a task, and what is to be done next."""
    task = _Task(task.jobs, task.num_tries + 1, task.num_left - 1)

    def record(job: Job, *, found: Found | None = None, error: str = "") -> Record:
        before = known[job.key].attempt if job.key in known else 0
        return Record(
            dataset=settings.dataset,
            id=job.id,
            sentiment=job.sentiment,
            settings=settings.hash,
            attempt=before + task.num_tries,
            image=str(job.image),
            group=tuple(job.id for job in task.jobs),
            host=answer.host,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            found=found,
            error=error,
        )

    if answer.found:
        pairs = zip(task.jobs, answer.found, strict=True)
        return [record(job, found=found) for job, found in pairs], []
    if task.num_left > 0:
        return [], [task]
    faults = answer.faults
    if not faults and len(task.jobs) == 1:
        faults = {task.jobs[0].key: answer.error}
    if faults:
        rest = tuple(job for job in task.jobs if job.key not in faults)
        further = [_Task(rest, task.num_tries)]
    else:
        further = [_Task((job,), task.num_tries, num_left=1) for job in task.jobs]
    # What an earlier run has found in just this way need not be found again.
    further = [one for one in further if one.jobs and not is_done(one.jobs, known)]
    return [record(j, error=faults[j.key]) for j in task.jobs if j.key in faults], further


class _Place:
    """The worker of a number, whoever it is at the moment, and its task."""

    def __init__(self, start_worker: StartWorker, number: int) -> None:
        self._start_worker, self._number = start_worker, number
        self.worker = start_worker(number)
        self.task: _Task | None = None
        self.answer: Future[Answer] = Future()
        self.death = ""

    def begin(self, task: _Task) -> None:
        """Give the worker a task."""
        self.task = task
        self.answer = self.worker.search(task.jobs)

    def end(self) -> Answer | None:
        """Return the answer that has come, or None if the worker died before it began.

        Raises:
            RunError: If the worker cannot make its searcher.
        """
        self.task = None
        has_begun = self.worker.ready.exception() is None
        if has_begun and (broken := self.worker.ready.result()):
            raise RunError(broken)
        error = self.answer.exception()
        if error is None:
            return self.answer.result()
        self.death = str(error) if isinstance(error, ChildProcessError) else type(error).__name__
        self.worker.kill()
        self.worker = self._start_worker(self._number)
        reason = f"the worker died ({self.death})"
        return Answer(platform.node(), error=reason) if has_begun else None
