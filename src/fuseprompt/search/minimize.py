"""The search of the best text of each problem, whatever the method.

Problems are searched in groups; every reported loss is computed again from the text alone.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import PurePath
from typing import Any, final

import torch

from fuseprompt.errors import ProblemError
from fuseprompt.objective.objective import Evaluation, Objective, Problem
from fuseprompt.search.method import HistoryEntry, Method, S
from fuseprompt.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Scored:
    """A text, prefix included, with its exact losses."""

    text: str
    loss: float
    terms: Mapping[str, float]  # unweighted
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]  # the text of each id


@final
@dataclass(frozen=True)
class Result(Scored):
    """The best text found for one problem.

    Attributes:
        finished: Whether the text ends as a sentence. One that does not is the result only where
            nothing was finished, or where its loss, with the price of ending, is lower by over 1.
        alternatives: Further finished texts, best first.
        fast_path: Share of candidates whose secondary ids came from the retokenisation table.
        seconds: Wall time of the group of problems divided by their number.
    """

    problem: Problem
    finished: bool
    alternatives: tuple[Scored, ...]
    history: tuple[HistoryEntry, ...]
    seed: int
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    fast_path: float
    seconds: float


@final
@dataclass(frozen=True)
class Progress:
    """What a callback sees after each step."""

    step: int
    steps: int  # at most
    texts: tuple[str, ...]  # the best so far of each problem of the group
    ids: tuple[str, ...] = ()


def minimize(
    objective: Objective,
    method: Method[S],
    problems: Sequence[Problem] | Problem | None = None,
    *,
    prefix: str = "",
    seed: int = 0,
    group_size: int = 16,
    time_limit: float | None = None,
    on_step: Callable[[Progress], None] | None = None,
    **targets: Any,
) -> list[Result]:
    """Return for each problem the text with the lowest loss.

    Args:
        objective: The weighted sum of terms.
        method: The search and its settings.
        problems: Problems with distinct ids; one problem, or targets as keywords, will do.
        prefix: Prefix of the problem made of keyword targets.
        seed: Fixes the result together with `group_size`; the random draws for a problem depend on
            it and on the problem, not on its group.
        group_size: Consecutive problems searched together.
        time_limit: Seconds for each group, after which the best so far is returned.
        on_step: Called after each step.
        **targets: Targets of a single problem.

    Raises:
        ProblemError: If targets are missing or unknown, or ids repeat.
        SearchError: If a prefix cannot be searched from, such as one that ends in white space.

    Example:
        minimize(objective, AutoDAN(), image="cat.jpg", prefix="An image of")[0].text
    """
    if problems is None:
        problems = [Problem("0", targets, prefix)]
    elif isinstance(problems, Problem):
        problems = [problems]
    elif prefix:
        raise ProblemError(
            f"Problems have a prefix of their own; got the keyword prefix={prefix!r} besides. Set "
            "it in each Problem."
        )
    elif targets:
        raise ProblemError(
            f"Pass problems or keyword targets, not both; got keywords {sorted(targets)}."
        )
    results = iterate(
        objective,
        method,
        problems,
        seed=seed,
        group_size=group_size,
        time_limit=time_limit,
        on_step=on_step,
    )
    return list(results)


def iterate(
    objective: Objective,
    method: Method[S],
    problems: Sequence[Problem],
    *,
    seed: int = 0,
    group_size: int = 16,
    time_limit: float | None = None,
    on_step: Callable[[Progress], None] | None = None,
) -> Iterator[Result]:
    """Yield the results of `minimize` as groups finish."""
    ids = [p.id for p in problems]
    if len(set(ids)) < len(ids):
        raise ProblemError(
            f"Problems need distinct ids; repeated: {sorted({i for i in ids if ids.count(i) > 1})}."
        )
    if group_size < 1:
        raise ProblemError(f"group_size must be at least 1, was: {group_size}.")
    for start in range(0, len(problems), group_size):
        yield from _search_group(
            objective,
            method,
            problems[start : start + group_size],
            seed,
            group_size,
            time_limit,
            on_step,
        )


def _search_group(
    objective: Objective,
    method: Method[S],
    problems: Sequence[Problem],
    seed: int,
    group_size: int,
    time_limit: float | None,
    on_step: Callable[[Progress], None] | None,
) -> Iterator[Result]:
    started = time.monotonic()
    bound = objective.bind(problems, seed=seed)
    ids = tuple(p.id for p in problems)
    state = method.init(bound)
    while not method.is_done(state):
        state = method.step(state)
        if on_step is not None:
            so_far = tuple(f.texts[0] for f in method.finish(state))
            on_step(Progress(state.num_steps, method.steps, so_far, ids))
        if time_limit is not None and time.monotonic() - started > time_limit:
            break
    found = method.finish(state)
    texts = [text for f in found for text in f.texts]
    index = [i for i, f in enumerate(found) for _ in f.texts]
    tokenizer = objective.primary.tokenizer
    evaluations = iter(bound.evaluate(texts, index))
    seconds = (time.monotonic() - started) / len(problems)
    settings = {
        **describe(method),
        "weights": objective.weights,
        "terms": {t.name: _options(t) for t in objective.terms},
        "group_size": group_size,
        "time_limit": time_limit,
        "device": str(objective.primary.vocabulary.device),
        "threads": torch.get_num_threads(),
        "models": {
            objective.fluency.name: objective.primary.name,
            **{t.name: t.model.name for t in objective.terms},
        },
    }
    for problem, outcome in zip(problems, found, strict=True):
        scored = [_scored(text, next(evaluations), tokenizer) for text in outcome.texts]
        order = outcome.order([one.loss for one in scored], tokenizer)
        best, *others = (scored[i] for i in order)
        yield Result(
            **vars(best),
            problem=problem,
            finished=best.text in outcome.finished,
            alternatives=tuple(others),
            history=outcome.history,
            seed=seed,
            settings=settings,
            versions=versions(),
            fast_path=state.fast_path,
            seconds=seconds,
        )


def _scored(text: str, exact: Evaluation, tokenizer: Tokenizer) -> Scored:
    ids = tuple(tokenizer.encode(text))
    return Scored(text, exact.loss, exact.terms, ids, tuple(tokenizer.decode([i]) for i in ids))


def describe(setting: Any) -> Any:
    """Return a setting as JSON values: a dataclass as its class and the fields of its repr."""
    if dataclasses.is_dataclass(setting) and not isinstance(setting, type):
        fields = {
            f.name: describe(getattr(setting, f.name))
            for f in dataclasses.fields(setting)
            if f.init and f.repr
        }
        return {"class": type(setting).__name__, **fields}
    if isinstance(setting, list | tuple):
        return [describe(item) for item in setting]
    if isinstance(setting, PurePath):
        return str(setting)
    if isinstance(setting, Mapping):
        return {str(k): describe(v) for k, v in setting.items()}
    return (
        setting if isinstance(setting, str | int | float | bool | None) else type(setting).__name__
    )


def _options(term: Any) -> dict[str, Any]:
    """Return a term's settings other than its model, name and weight, if it is a dataclass."""
    if not dataclasses.is_dataclass(term) or isinstance(term, type):
        return {}
    return {n: v for n, v in describe(term).items() if n not in ("model", "name", "weight")}


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    names = ("fuseprompt", "torch", "transformers", "tokenizers")
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
