"""Caption a dataset into a folder, and go on where an earlier run was stopped.

Workers caption and the dispatcher handles faults. Here trouble is looked for before any work, each
group is written to the journal as it comes, and the merged files are made at the end.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import final

from fuseprompt.errors import RunError
from fuseprompt.evaluation.datasets.base import Dataset
from fuseprompt.evaluation.runs import workers
from fuseprompt.evaluation.runs.dispatch import dispatch
from fuseprompt.evaluation.runs.folder import (
    JOURNAL,
    SETTINGS,
    Run,
    RunSettings,
    Scope,
    check_records,
    check_same,
    open_folder,
    read_run,
    read_settings,
    write_merged,
    write_settings,
)
from fuseprompt.evaluation.runs.journal import Journal, Key, Record, newest, read_journal
from fuseprompt.evaluation.runs.plan import (
    Job,
    RunOptions,
    is_done,
    make_groups,
    make_jobs,
    read_shard,
)
from fuseprompt.tasks.settings import ModelSettings, SearchSettings, model_ids


@final
@dataclass(frozen=True)
class Status:
    """Progress of a run; `num_new` captions were made in the `seconds` of this program."""

    num_jobs: int
    num_done: int
    num_failed: int
    num_new: int
    seconds: float


OnStatus = Callable[[Status], object]
OnNote = Callable[[str], object]


def evaluate(
    dataset: Dataset,
    options: RunOptions,
    *,
    models: ModelSettings,
    search: SearchSettings,
    on_status: OnStatus,
    on_note: OnNote,
) -> Run:
    """Caption the images of a dataset into a folder.

    `on_status` is called about once a second, `on_note` with sentences that a person should read.

    Returns:
        The run, complete unless images failed.

    Raises:
        MissingModelError: If a model is not here and cannot be had.
        RunError: If the folder cannot be used or holds another run, if too many images are missing
            or fail, if the disk is full, or if no worker can load the models.
    """
    import torch  # Workers of tests import this module, too, and need no torch.

    from fuseprompt.evaluation.runs.searcher import MakeCaptioner, settings_of
    from fuseprompt.models.hub import pick_device

    sentiments = tuple(sorted({item.sentiment for item in dataset.items}))
    search.check(has_sentiment=any(sentiments))
    device = pick_device(models.device).type if models.device == "auto" else models.device
    num_workers = options.workers or (torch.cuda.device_count() if device == "cuda" else 1)
    threads = options.threads
    if threads is None and options.resume and (options.out / SETTINGS).exists():
        threads = read_settings(options.out)[0].threads
    threads = threads or max(1, len(os.sched_getaffinity(0)) // num_workers)
    ids = model_ids(models.models)
    make = MakeCaptioner(ids, search, sentiments, device, threads, models.dtype)

    def open_workers() -> AbstractContextManager[workers.StartWorker]:
        if options.executor == "local":
            return nullcontext(partial(workers.LocalWorker, make))
        gpu = device.startswith("cuda")
        return workers.ray_workers(make, num_workers=num_workers, threads=threads, gpu=gpu)

    return caption_dataset(
        dataset,
        settings_of(make, dataset),
        replace(options, workers=num_workers),
        open_workers=open_workers,
        on_status=on_status,
        on_note=on_note,
    )


def caption_dataset(
    dataset: Dataset,
    settings: RunSettings,
    options: RunOptions,
    *,
    open_workers: Callable[[], AbstractContextManager[workers.StartWorker]],
    on_status: OnStatus = lambda _: None,
    on_note: OnNote = lambda _: None,
) -> Run:
    """Caption as `evaluate` does, by workers of any kind, opened if anything is left to do."""
    folder, shard = options.out, read_shard(options.shard)
    jobs = make_jobs(dataset.items, limit=options.limit)
    # Every n-th group: whole groups, so shards change no caption.
    groups = make_groups(jobs, settings.group_size)[shard.index - 1 :: shard.count]
    mine = [job for group in groups for job in group]
    scope = Scope(len(jobs), shard, len(mine), options.limit, str(options.root), options.sentiment)
    with open_folder(folder, resume=options.resume):
        # A folder without captions yet, as after a failed load of models, takes other settings.
        if read_journal(folder / JOURNAL) and (folder / SETTINGS).exists():
            _check_folder(folder, settings, scope)
        _check_images(mine, options.max_failures, on_note)
        write_settings(folder, settings, scope)
        with Journal(folder / JOURNAL) as journal:
            check_records(journal.records, settings, folder)
            known = newest(journal.records)
            todo = [group for group in groups if not is_done(group, known)]
            if todo:
                with open_workers() as start:
                    batches = dispatch(todo, start, settings, options, known)
                    with closing(batches):  # Ends the workers, however this ends.
                        _keep(batches, journal, mine, options, on_status)
        write_merged(run := read_run(folder))
        return run


def _keep(
    batches: Iterable[list[Record]],
    journal: Journal,
    jobs: Sequence[Job],
    options: RunOptions,
    on_status: OnStatus,
) -> None:
    """Write records as they come until all are there or too many failed."""
    before, failed = newest(journal.records), dict[Key, Record]()
    done = {job.key for job in jobs if job.key in before and before[job.key].ok}
    num_new, start = 0, time.monotonic()
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
        on_status(Status(len(jobs), len(done), len(failed), num_new, seconds))
        if len(failed) > options.max_failures:
            raise RunError(
                f"{len(failed)} images failed, more than --max-failures {options.max_failures}; "
                f"the last: {[*failed.values()][-1].error} What is done is safe: mend it and go on "
                "with --resume."
            )


def _check_folder(folder: Path, settings: RunSettings, asked: Scope) -> None:
    there, held = read_settings(folder)
    check_same(there, settings, where=folder)
    if held.shard != asked.shard:
        raise RunError(
            f"{folder}: holds shard {held.shard}, asked for was {asked.shard}. Give each "
            "shard a folder of its own, and merge them at the end."
        )
    if asked.limit is not None and (held.limit is None or held.limit > asked.limit):
        raise RunError(
            f"{folder}: was made for {held.limit or 'all'} images, asked for were {asked.limit}. "
            "The limit of a run can be raised, not lowered: use another folder."
        )


def _check_images(jobs: Sequence[Job], max_failures: int, on_note: OnNote) -> None:
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
