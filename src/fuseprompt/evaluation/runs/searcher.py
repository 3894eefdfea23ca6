"""The work of a worker: load the models once and caption group after group."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch
from filelock import FileLock
from PIL import Image

from fuseprompt.cache import cache_dir
from fuseprompt.errors import ImageError, ModelError
from fuseprompt.evaluation.datasets.base import Dataset
from fuseprompt.evaluation.runs.folder import RunSettings
from fuseprompt.evaluation.runs.journal import Found, Key
from fuseprompt.evaluation.runs.plan import Job
from fuseprompt.models.hub import revision_of, silence_libraries
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.search.method import Method
from fuseprompt.search.minimize import describe, versions
from fuseprompt.tasks.caption import Caption, caption, objective_of, search_of, try_open
from fuseprompt.tasks.job import Failure
from fuseprompt.tasks.models import CaptionModels, load_models, proposal_of
from fuseprompt.tasks.settings import WEIGHTS, CaptionSettings, ModelIds, SearchSettings

#: Settings of a search that a run has itself, or that its proposal or method names: maps are known
#: by what they were fitted to, not by their folder.
_OF_THE_RUN: Final = frozenset(
    {"class", "seed", "group_size", "fuse_table", "fuse_fallback", "fuse_cases"}
)


@final
@dataclass(frozen=True)
class MakeCaptioner:
    """Makes the searcher of a worker, in the worker, for sentiments of which "" is none."""

    ids: ModelIds
    settings: SearchSettings
    sentiments: tuple[str, ...]
    device: str
    threads: int
    dtype: str = "float32"

    def __call__(self, number: int) -> "Captioner":
        """Return the searcher of the worker of a number, which is its turn at a GPU."""
        silence_libraries()  # Several workers share a terminal.
        torch.set_num_threads(self.threads)
        device = self.device
        if device == "cuda":
            device = f"cuda:{number % torch.cuda.device_count()}"
        models = load_models(
            self.ids, with_sentiment=any(self.sentiments), device=device, dtype=self.dtype
        )
        return Captioner(models, self.settings, self.sentiments)


def settings_of(make: MakeCaptioner, dataset: Dataset) -> RunSettings:
    """Return what the captions of a run depend on; a `MissingModelError` if a model is not here."""
    has_sentiment = any(make.sentiments)
    ids = {n: i for n, i in vars(make.ids).items() if n != "sentiment" or has_sentiment}
    search = {n: v for n, v in describe(make.settings).items() if n not in _OF_THE_RUN}
    if search.pop("as_published"):
        published = search_of(CaptionSettings(**vars(make.settings)))
        search["method"] = describe(published)
        del search["proposal"], search["examples"]
    else:
        search["proposal"] = describe(proposal_of(make.settings))
    if make.dtype != "float32":
        search["dtype"] = make.dtype
    weights = {**WEIGHTS, **make.settings.weights}
    if not has_sentiment:
        del weights["sentiment"], search["sentiment_temperature"]
    return RunSettings(
        dataset=dataset.name,
        split=dataset.split,
        fingerprint=dataset.fingerprint,
        models=ids,
        revisions={name: revision_of(model_id) for name, model_id in ids.items()},
        search={**search, "weights": weights},
        group_size=make.settings.group_size,
        seed=make.settings.seed,
        device=make.device.partition(":")[0],
        threads=make.threads,
        versions=versions(),
    )


@final
class Captioner:
    """Captions groups of images, each of one of the given sentiments, of which "" is none.

    Raises:
        ProblemError: If the classifier knows no such sentiment.
        ModelError: If the models in which losses are computed do not fit.
    """

    def __init__(
        self, models: CaptionModels, settings: SearchSettings, sentiments: Sequence[str]
    ) -> None:
        self._settings = {
            s: CaptionSettings(**{**vars(settings), "sentiment": s or None}) for s in sentiments
        }
        self._objectives = {s: objective_of(self._settings[s], models) for s in sentiments}
        # One for all groups, since the objectives keep what a proposal makes of two models.
        self._method = search_of(self._settings[sentiments[0]])
        for sentiment, objective in self._objectives.items():
            if rough := objective.in_fp32().dtypes:
                raise ModelError(
                    f"A run's losses are of models in float32, but those of {', '.join(rough)} do "
                    "not fit beside the same in bfloat16. Leave --dtype out, or take fewer workers."
                )
            _make_tables(objective, self._settings[sentiment], self._method)

    def find_faults(self, jobs: Sequence[Job]) -> dict[Key, str]:
        """Return a sentence on each image that cannot be read, by key."""
        opened = {job.key: try_open(str(job.image)) for job in jobs}
        return {key: one.error for key, one in opened.items() if isinstance(one, Failure)}

    def search(self, jobs: Sequence[Job]) -> list[Found]:
        """Return captions in the order of the jobs, which share a sentiment and a search."""
        sentiment = jobs[0].sentiment
        results = caption(
            [job.image for job in jobs],
            replace(self._settings[sentiment], group_size=len(jobs)),
            objective=self._objectives[sentiment],
            method=self._method,
            names=[job.id for job in jobs],
        )
        return [_found(result) for result in results]


def _found(one: Caption | Failure) -> Found:
    if isinstance(one, Failure):
        raise ImageError(one.error)
    result = one.result
    return Found(
        caption=one.caption,
        text=one.text,
        token_ids=result.token_ids,
        loss=round(result.loss, 6),
        terms={name: round(value, 6) for name, value in result.terms.items()},
        finished=result.finished,
        seconds=round(result.seconds, 3),
    )


def _make_tables(objective: Objective, settings: CaptionSettings, method: Method[Any]) -> None:
    """Make what the search keeps on disk, one worker at a time, and check the sentiment."""
    targets = {"image": Image.new("RGB", (32, 32)), "sentiment": settings.sentiment}
    wanted = {term.target for term in objective.terms}
    problem = Problem("0", {k: v for k, v in targets.items() if k in wanted}, settings.prefix)
    bound = objective.bind([problem])
    # Without the lock every worker of a machine would make the same table of a minute's work.
    lock = FileLock(cache_dir() / "tables.lock")
    with suppress(OSError):  # Where nothing can be written there is no lock.
        cache_dir().mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        method.init(bound)
    finally:
        lock.release()
