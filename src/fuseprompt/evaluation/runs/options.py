"""Options of a run over a dataset, in Python and on the command line; no caption depends on them.

Nothing heavy is imported here. Read next: `fuseprompt.evaluation.runs.plan`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, final

from fuseprompt.tasks.settings import Folder, Kind, Name, NaturalInt, PositiveFloat, PositiveInt


@final
@dataclass(frozen=True)
class RunOptions:
    """Which captions to write and where, who does the work, and when to give up.

    Attributes:
        root: Folder of the dataset.
        out: Folder to write to.
        resume: Go on with the run in the folder, if there is one.
        split: Split; the dataset's first by default.
        sentiment: Sentiment, such as positive, or both.
        limit: Only the first images.
        shard: Work on a part, in a folder of its own; auto asks SLURM or torchrun.
        executor: Workers are processes, or of a Ray cluster.
        workers: Workers; one per GPU by default, one on a CPU.
        threads: CPU threads per worker, a setting of the run; cores / workers by default.
        gpus_per_worker: With Ray, share of a GPU for each worker, such as 0.5.
        max_failures: Failed images after which the run ends.
        hours: End after so long; --resume goes on.
        group_timeout: Seconds after which the worker of a group is taken to hang and is replaced.
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
    gpus_per_worker: PositiveFloat = 1.0
    max_failures: NaturalInt = 100
    hours: PositiveFloat | None = None
    group_timeout: PositiveFloat | None = None
