"""Join the folders of a run's shards into one, as if one machine had made all of it.

Scores are computed on the whole only: the mean of shards' scores is another number. Nothing is
captioned or scored here. Read next: `fuseprompt.cli.merge`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from fuseprompt.errors import RunError
from fuseprompt.evaluation.runs.folder import (
    JOURNAL,
    Run,
    check_same,
    open_folder,
    read_run,
    write_merged,
    write_settings,
)
from fuseprompt.evaluation.runs.journal import Journal, Key, Record
from fuseprompt.evaluation.runs.plan import ALL


@final
@dataclass(frozen=True)
class Merged:
    """What came of a merge.

    Attributes:
        run: The joined run.
        num_doubled: Captions that were in more than one folder.
        num_differing: Those of them that are not the same text; the first folder's is kept.
    """

    run: Run
    num_doubled: int = 0
    num_differing: int = 0


def merge_runs(folders: Sequence[Path], out: Path) -> Merged:
    """Join runs into a new folder.

    Args:
        folders: Folders of runs with the same settings.
        out: The folder to make; `evaluate --resume` can go on with it.

    Returns:
        The joined run, complete or not.

    Raises:
        RunError: If one is no run, they differ in settings or in the images that were asked for, or
            the new folder cannot be used.
    """
    runs = [read_run(folder) for folder in folders]
    first = runs[0]
    for run in runs[1:]:
        check_same(first.settings, run.settings, where=first.folder)
        if run.scope.num_jobs != first.scope.num_jobs:
            raise RunError(
                f"{first.folder} is part of a run of {first.scope.num_jobs:,} captions, "
                f"{run.folder} of one of {run.scope.num_jobs:,}. Merge shards of one run."
            )
    records: dict[Key, Record] = {}
    num_doubled = num_differing = 0
    for run in runs:
        for key, record in run.records.items():
            kept = records.get(key)
            if kept is None or (record.ok and not kept.ok):
                records[key] = record
            elif kept.found is not None and record.found is not None:
                num_doubled += 1
                num_differing += kept.found.text != record.found.text
    scope = replace(first.scope, shard=ALL, num_shard_jobs=first.scope.num_jobs)
    with open_folder(out, resume=False):
        write_settings(out, first.settings, scope)
        with Journal(out / JOURNAL) as journal:
            journal.append(list(records.values()))
        merged = read_run(out)
        write_merged(merged)
    return Merged(merged, num_doubled, num_differing)


def merge_again(folder: Path) -> Merged:
    """Write the merged files of a run anew from its journal, finished or not.

    Args:
        folder: The folder of the run.

    Returns:
        The run.

    Raises:
        RunError: If it is no run, or another process is writing to it.
    """
    read_run(folder)  # Says so if it is none, before a folder is made.
    with open_folder(folder, resume=True):
        run = read_run(folder)
        write_merged(run)
    return Merged(run)
