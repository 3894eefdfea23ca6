"""Options of a run, its jobs, and the groups of jobs that are searched together.

The images of a dataset are cut into groups of consecutive ones before anything is known of shards,
workers or what is done already: so none of these changes a caption. Nothing heavy is imported here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, final

from fuseprompt.errors import RunError
from fuseprompt.evaluation.runs.journal import Key, Record
from fuseprompt.tasks.kinds import Folder, Kind, Name, NaturalInt, PositiveInt

if TYPE_CHECKING:
    from fuseprompt.evaluation.datasets.base import Item


@final
@dataclass(frozen=True)
class RunOptions:
    """Which captions to write and where, who does the work, and when to give up.

    No caption depends on them.

    Attributes:
        root: Folder of the dataset.
        out: Folder to write to.
        resume: Go on with the run in the folder, if there is one.
        split: Split; the dataset's first by default.
        sentiment: Sentiment, such as positive, or both.
        limit: Only the first images.
        shard: Work on a part, in a folder of its own.
        executor: Workers are processes, or of a Ray cluster.
        workers: Workers; one per GPU by default, one on a CPU.
        threads: CPU threads per worker, a setting of the run; cores / workers by default.
        max_failures: Failed images after which the run ends.
    """

    root: Folder
    out: Folder
    resume: bool = False
    split: Name | None = None
    sentiment: Annotated[str, Kind("LABEL")] | None = None
    limit: PositiveInt | None = None
    shard: Annotated[str, Kind("I/N")] = "1/1"
    executor: Literal["local", "ray"] = "local"
    workers: PositiveInt | None = None
    threads: PositiveInt | None = None
    max_failures: NaturalInt = 100


@final
@dataclass(frozen=True)
class Job:
    """A caption to write for an image; `sentiment` is "" for none."""

    id: str
    sentiment: str
    image: Path

    @property
    def key(self) -> Key:
        """Id and sentiment."""
        return (self.id, self.sentiment)


#: Jobs that are searched together, all of one sentiment, in the order of the dataset.
Group = tuple[Job, ...]


@final
@dataclass(frozen=True)
class Shard:
    """One of `count` parts of a run that are worked on apart; `index` is from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        """Return it as it is typed, such as "2/8"."""
        return f"{self.index}/{self.count}"


#: The whole of a run.
ALL: Final = Shard(1, 1)


def make_jobs(items: Iterable["Item"], *, limit: int | None = None) -> list[Job]:
    """Return a job for each item of the first `limit` images, by sentiment, then in their order."""
    items = list(items)
    kept = set(list(dict.fromkeys(item.id for item in items))[:limit])
    jobs = [Job(item.id, item.sentiment, item.image) for item in items if item.id in kept]
    return sorted(jobs, key=lambda job: job.sentiment)  # Stable: ids keep their order.


def make_groups(jobs: Iterable[Job], group_size: int) -> list[Group]:
    """Cut jobs, ordered by sentiment, into groups of consecutive ones of the same sentiment."""
    runs = [tuple(same) for _, same in groupby(jobs, key=lambda job: job.sentiment)]
    return [run[i : i + group_size] for run in runs for i in range(0, len(run), group_size)]


def read_shard(text: str) -> Shard:
    """Return the shard of a text such as "2/8"."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is not None and 1 <= int(found[1]) <= int(found[2]):
        return Shard(int(found[1]), int(found[2]))
    raise RunError(f"shard {text!r}: expected i/n with i from 1 to n, such as 2/8.")


def is_done(jobs: Sequence[Job], records: Mapping[Key, Record]) -> bool:
    """Return whether jobs have captions that were searched together, which decides near ties."""
    together = tuple(job.id for job in jobs)
    found = [records.get(job.key) for job in jobs]
    return all(r is not None and r.ok and r.group == together for r in found)
