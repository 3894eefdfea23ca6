"""Caption a dataset into a folder, and go on where an earlier run was stopped.

Workers caption, the dispatcher handles faults. This file puts them together: it looks for trouble
before any work, writes each group to the journal as it comes, and makes the merged files at the
end. Read next: `fuseprompt.evaluation.runs.merge`.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from fuseprompt.errors import RunError
from fuseprompt.evaluation.datasets.base import Dataset
from fuseprompt.evaluation.runs.dispatch import dispatch
from fuseprompt.evaluation.runs.folder import (
    JOURNAL,
    Run,
    RunSettings,
    Scope,
    check_records,
    check_same,
    has_settings,
    open_folder,
    read_run,
    read_settings,
    write_merged,
    write_settings,
)
from fuseprompt.evaluation.runs.journal import Journal, Key, Record, newest, read_journal
from fuseprompt.evaluation.runs.plan import (
    ALL,
    Group,
    Job,
    Shard,
    is_done,
    make_groups,
    make_jobs,
    take_shard,
)
from fuseprompt.evaluation.runs.workers import StartWorker

#: Bytes of a caption in all files of a run together, and of a report beside them.
BYTES_PER_CAPTION: Final = 4_000
BYTES_OF_REPORT: Final = 50_000_000


@final
@dataclass(frozen=True)
class Status:
    """Progress of a run.

    Attributes:
        num_jobs: Captions that this folder is to hold.
        num_done: Those that are there.
        num_failed: Images that have failed for good.
        num_new: Captions of this run of the program.
        seconds: Since it began to work, by a clock that never jumps.
    """

    num_jobs: int
    num_done: int
    num_failed: int
    num_new: int
    seconds: float

    @property
    def captions_per_hour(self) -> float:
        """Captions in an hour at the pace so far; 0 before the first."""
        return 3600.0 * self.num_new / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end at the pace so far, or None before the first caption."""
        left = self.num_jobs - self.num_done - self.num_failed
        return self.seconds * left / self.num_new if self.num_new else None


@final
@dataclass(frozen=True)
class Plan:
    """Which captions to write, where, and when to give up; no caption depends on it.

    Attributes:
        folder: The folder of the run.
        root: Folder of the dataset, as a person finds it again.
        sentiment: Sentiment that the dataset was read with, or None.
        shard: The part to work on.
        limit: Only the first so many images.
        resume: Go on with the run in the folder, if there is one.
        num_workers: Most workers at a time.
        max_failures: Failed images after which the run ends.
        hours: End after so long; groups that are not finished then are left to a later run.
        group_timeout: Seconds after which the worker of a group is taken to hang, is replaced, and
            the group is treated like one whose worker died; None for never.
    """

    folder: Path
    root: str = ""
    sentiment: str | None = None
    shard: Shard = ALL
    limit: int | None = None
    resume: bool = False
    num_workers: int = 1
    max_failures: int = 100
    hours: float | None = None
    group_timeout: float | None = None


def _ignore(_: object) -> None:
    """Do nothing: the default of a callback."""


def evaluate(
    dataset: Dataset,
    settings: RunSettings,
    *,
    plan: Plan,
    open_workers: Callable[[], AbstractContextManager[StartWorker]],
    on_status: Callable[[Status], object] = _ignore,
    on_note: Callable[[str], object] = _ignore,
) -> Run:
    """Caption the images of a dataset.

    Args:
        dataset: The dataset.
        settings: What the captions depend on.
        plan: Which captions to write, and where.
        open_workers: Makes what starts workers; not called if nothing is left to do.
        on_status: Called about once a second.
        on_note: Called with sentences that a person should read.

    Returns:
        The run, complete unless images failed or `plan.hours` were over.

    Raises:
        RunError: If the folder cannot be used or holds another run, if too many images are missing
            or fail, if the disk is full, or if no worker can load the models.
    """
    jobs = make_jobs(dataset.items, limit=plan.limit)
    groups = take_shard(make_groups(jobs, settings.group_size), plan.shard)
    mine = [job for group in groups for job in group]
    scope = Scope(len(jobs), plan.shard, len(mine), plan.limit, plan.root, plan.sentiment)
    with open_folder(plan.folder, resume=plan.resume):
        # A folder without captions yet, as after a failed load of models, takes other settings.
        if has_settings(plan.folder) and read_journal(plan.folder / JOURNAL):
            _check_folder(plan, settings)
        _check_disk(plan.folder, len(mine))
        _check_images(mine, plan.max_failures, on_note)
        write_settings(plan.folder, settings, scope)
        with Journal(plan.folder / JOURNAL) as journal:
            check_records(journal.records, settings, plan.folder)
            known = newest(journal.records)
            todo = [group for group in groups if not is_done(group, known)]
            if todo:
                keys = {job.key for job in mine}
                with open_workers() as start:
                    _work(todo, start, journal, settings, plan, keys, on_status, on_note)
        run = read_run(plan.folder)
        write_merged(run)
        return run


def _work(
    todo: Sequence[Group],
    start_worker: StartWorker,
    journal: Journal,
    settings: RunSettings,
    plan: Plan,
    keys: set[Key],
    on_status: Callable[[Status], object],
    on_note: Callable[[str], object],
) -> None:
    """Do groups until all are done, the time is over, or more images failed than may."""
    known = newest(journal.records)
    done = {record.key for record in known.values() if record.ok} & keys
    failed: dict[Key, Record] = {}
    num_new, start = 0, time.monotonic()
    batches = dispatch(
        todo,
        start_worker,
        settings=settings,
        known=known,
        num_workers=plan.num_workers,
        timeout=plan.group_timeout,
        on_note=on_note,
    )
    with closing(batches):  # Ends the workers, however this ends.
        for records in batches:
            journal.append(records)
            for record in records:
                if record.ok:
                    done.add(record.key)
                    num_new += 1
                else:
                    done.discard(record.key)
                    failed[record.key] = record
            seconds = time.monotonic() - start
            on_status(Status(len(keys), len(done), len(failed), num_new, seconds))
            if len(failed) > plan.max_failures:
                raise RunError(
                    f"{len(failed)} images failed, more than --max-failures {plan.max_failures}; "
                    f"the last: {[*failed.values()][-1].error} What is done is safe: mend it and "
                    "go on with --resume."
                )
            if plan.hours is not None and seconds > plan.hours * 3600.0:
                return


def _check_folder(plan: Plan, settings: RunSettings) -> None:
    """Refuse to go on with other settings, another shard, or fewer images than before."""
    there, scope = read_settings(plan.folder)
    check_same(there, settings, where=plan.folder)
    if scope.shard != plan.shard:
        raise RunError(
            f"{plan.folder}: holds shard {scope.shard}, asked for was {plan.shard}. Give each "
            "shard a folder of its own, and merge them at the end."
        )
    if plan.limit is not None and (scope.limit is None or scope.limit > plan.limit):
        before = "all" if scope.limit is None else str(scope.limit)
        raise RunError(
            f"{plan.folder}: was made for {before} images, asked for were {plan.limit}. The limit "
            "of a run can be raised, not lowered: use another folder."
        )


def _check_disk(folder: Path, num_jobs: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    need = num_jobs * BYTES_PER_CAPTION + BYTES_OF_REPORT
    free = shutil.disk_usage(folder).free
    if free < need:
        raise RunError(
            f"{folder}: {free / 1e6:,.0f} MB are free, {num_jobs:,} captions and their report take "
            f"up to {need / 1e6:,.0f} MB. Make room, or name a folder on another disk."
        )


def _check_images(jobs: Sequence[Job], max_failures: int, on_note: Callable[[str], object]) -> None:
    """Refuse to begin if all image files are missing, or more than may fail."""
    files = list(dict.fromkeys(job.image for job in jobs))
    missing = [file for file in files if not file.is_file()]
    if not missing:
        return
    some = ", ".join(str(file) for file in missing[:3])
    found = f"{len(missing):,} of {len(files):,} image files are missing, such as {some}"
    if len(missing) == len(files) or len(missing) > max_failures:
        raise RunError(
            f"{found}. Look at --root, get the images, or allow more failures by --max-failures."
        )
    on_note(f"{found}; they count as failures.")
