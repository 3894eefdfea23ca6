"""Join the folders of a run's shards into one, as if one machine had made all of it; compare two.

Nothing is captioned or scored here. Read next: `fuseprompt.evaluation.runs.conclude`.
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
    """Result of a merge.

    Attributes:
        run: The joined run.
        num_doubled: Captions that were in more than one folder.
        num_differing: Those of them that are not the same text; the first folder's is kept.
    """

    run: Run
    num_doubled: int = 0
    num_differing: int = 0


def merge(folders: Sequence[Path], out: Path | None = None) -> Merged:
    """Join runs into a new folder, or write the merged files of one run anew from its journal.

    Args:
        folders: Folders of runs with the same settings, finished or not.
        out: The folder to make; `evaluate --resume` can go on with it. Without it the one folder's
            own files are written.

    Returns:
        The joined run, complete or not.

    Raises:
        RunError: If one is no run, they differ in settings or in the images that were asked for,
            the new folder cannot be used, or another process is writing to it.
    """
    runs = [read_run(folder) for folder in folders]
    first = runs[0]
    if out is None:
        with open_folder(first.folder, resume=True):
            run = read_run(first.folder)
            write_merged(run)
        return Merged(run)
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


@final
@dataclass(frozen=True)
class Agreement:
    """Agreement of two runs over the same images that were grouped otherwise.

    A text has the same losses in every group, to the tolerance of the scores. A search may all the
    same end elsewhere where two candidates are nearly equal: a batch of another size rounds
    otherwise.

    Attributes:
        num_captions: Captions that both have.
        num_differing: Those whose texts differ.
        largest_difference: Of a term between equal texts, relative to max(1, the term).
    """

    num_captions: int
    num_differing: int
    largest_difference: float


def compare(one: Run, other: Run) -> Agreement:
    """Compare two runs, caption by caption."""
    pairs = [
        (a.found, other.captions[key].found)
        for key, a in one.captions.items()
        if key in other.captions
    ]
    same = [(a, b) for a, b in pairs if a is not None and b is not None and a.text == b.text]
    differences = [
        abs(value - b.terms[name]) / max(1.0, abs(value))
        for a, b in same
        for name, value in a.terms.items()
    ]
    return Agreement(len(pairs), len(pairs) - len(same), max(differences, default=0.0))
