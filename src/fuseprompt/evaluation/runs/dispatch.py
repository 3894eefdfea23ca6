"""Hands groups to an executor and decides what becomes of faults.

Every fault is tried `MAX_ATTEMPTS` times. An image that cannot be read is left out of its group,
which is searched without it. When a search fails or kills its worker, the images of the group are
tried one by one, those that fail alone are left out, and the others are searched together again:
one bad image costs no other its caption. A search that takes too long is ended with its worker and
counts as one that failed. Nothing is written to a file here. Read next:
`fuseprompt.evaluation.runs.evaluate`.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from fuseprompt.evaluation.runs.executors import Done, Executor, Task
from fuseprompt.evaluation.runs.journal import Found, Key, Record
from fuseprompt.evaluation.runs.patience import Patience
from fuseprompt.evaluation.runs.plan import Group, Job, holds

#: How often an image, or a group, is tried in one run of the program.
MAX_ATTEMPTS: Final = 3

#: Seconds after which the caller gets a turn, even if nothing is done.
_TURN: Final = 1.0


@final
@dataclass(frozen=True)
class Outcome:
    """What became of one image at one attempt.

    Attributes:
        job: The job.
        attempt: Number of the attempt, those of earlier runs included.
        group: Ids of the images that were searched together.
        host: Machine.
        found: The caption, or None.
        error: Why there is none, or "".
        is_final: Whether it will not be tried again.
    """

    job: Job
    attempt: int
    group: tuple[str, ...]
    host: str
    found: Found | None = None
    error: str = ""
    is_final: bool = True


def dispatch(
    groups: Sequence[Group],
    executor: Executor,
    *,
    records: Mapping[Key, Record],
    patience: Patience | None = None,
) -> Iterator[list[Outcome]]:
    """Do groups until all images have a caption or have failed for good.

    Args:
        groups: The groups.
        executor: Does the work; it is left open.
        records: Newest record of each key from earlier runs.
        patience: Says which searches take too long; by default none does.

    Yields:
        What became of images, those of a group together, in the order in which they finish; nothing
        about once a second, so that the caller can stop or show progress.
    """
    patience = Patience() if patience is None else patience
    works = [_Work(group, records) for group in groups]
    waiting = deque(_Step(work, work.jobs) for work in works)
    running: dict[int, _Step] = {}
    number = 0
    while waiting or running:
        while waiting and executor.num_free:
            step = waiting.popleft()
            running[number] = step
            executor.submit(Task(number, step.jobs))
            number += 1
        late = patience.look({number: running[number].jobs for number in executor.searching})
        ended = [executor.abort(number, reason=patience.reason) for number in late]
        done = ended or executor.wait(_TURN)
        if not done:
            yield []
        for one in done:
            step = running.pop(one.task.number)
            outcomes, further = _judge(step, one)
            waiting.extend(further)
            yield outcomes


@final
@dataclass(eq=False)
class _Work:
    """A group, and how it stands.

    Attributes:
        group: The group as planned.
        records: Newest record of each key from earlier runs.
        jobs: Those of its jobs that have not failed for good.
        tries: How often each job was tried, earlier runs included.
        num_faults: How often the image of each job could not be read in this run.
        num_crashes: Searches of these jobs that failed.
        num_probes: Jobs that are still tried alone.
        has_culprit: Whether one of them failed alone.
        error: The last crash.
    """

    group: Group
    records: Mapping[Key, Record]
    jobs: tuple[Job, ...] = ()
    tries: Counter[Key] = field(default_factory=Counter)
    num_faults: Counter[Key] = field(default_factory=Counter)
    num_crashes: int = 0
    num_probes: int = 0
    has_culprit: bool = False
    error: str = ""

    def __post_init__(self) -> None:
        self.jobs = self.group.jobs
        for key in (job.key for job in self.jobs if job.key in self.records):
            self.tries[key] = self.records[key].attempt

    def leave_out(self, failed: set[Key]) -> None:
        self.jobs = tuple(job for job in self.jobs if job.key not in failed)

    def remaining(self) -> list["_Step"]:
        """Return the search of the jobs that are left, unless an earlier run has made it."""
        is_over = not self.jobs or holds(self.jobs, self.records)
        return [] if is_over else [_Step(self, self.jobs)]


@final
@dataclass(frozen=True, eq=False)
class _Step:
    """A task of a group: all of its jobs, or one of them alone to find a culprit."""

    work: _Work
    jobs: tuple[Job, ...]
    is_probe: bool = False

    def outcome(
        self,
        job: Job,
        host: str,
        *,
        found: Found | None = None,
        error: str = "",
        final: bool = True,
    ) -> Outcome:
        together = tuple(other.id for other in self.jobs)
        return Outcome(job, self.work.tries[job.key], together, host, found, error, final)


def _judge(step: _Step, done: Done) -> tuple[list[Outcome], list[_Step]]:
    """Return what is to be recorded of a task, and what is to be done next."""
    work = step.work
    work.tries.update(job.key for job in step.jobs)
    if step.is_probe:
        return _judge_probe(step, done)
    if done.found:
        pairs = zip(step.jobs, done.found, strict=True)
        return [step.outcome(job, done.host, found=found) for job, found in pairs], []
    if done.faults:
        work.num_faults.update(done.faults.keys())
        hopeless = {key for key in done.faults if work.num_faults[key] >= MAX_ATTEMPTS}
        work.leave_out(hopeless)
        outcomes = [
            step.outcome(job, done.host, error=done.faults[job.key], final=job.key in hopeless)
            for job in step.jobs
            if job.key in done.faults
        ]
        return outcomes, work.remaining()
    work.num_crashes += 1
    work.error = done.error
    if work.num_crashes < MAX_ATTEMPTS:
        return [], [_Step(work, work.jobs)]
    if len(work.jobs) == 1:
        return _fail_all(step, done), []
    work.num_probes, work.has_culprit = len(work.jobs), False
    return [], [_Step(work, (job,), is_probe=True) for job in work.jobs]


def _judge_probe(step: _Step, done: Done) -> tuple[list[Outcome], list[_Step]]:
    """Judge a job that was searched alone; its caption is not kept, since a group decides it."""
    work, (job,) = step.work, step.jobs
    outcomes = []
    if not done.found:
        work.has_culprit = True
        work.leave_out({job.key})
        error = done.error or done.faults[job.key]
        outcomes.append(step.outcome(job, done.host, error=error))
    work.num_probes -= 1
    if work.num_probes:
        return outcomes, []
    if not work.has_culprit:  # Each can be searched, but not all together.
        return _fail_all(step, done), []
    work.num_crashes = MAX_ATTEMPTS - 1  # One more crash, and those that are left are tried alone.
    return outcomes, work.remaining()


def _fail_all(step: _Step, done: Done) -> list[Outcome]:
    work = step.work
    return [step.outcome(job, done.host, error=work.error) for job in work.jobs]
