"""The search of the best text of each problem, whatever the method.

Problems are searched in groups; every reported loss is computed again from the text alone.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from operator import le
from pathlib import Path, PurePath
from typing import Any, final

import torch

from fuseprompt.errors import ProblemError
from fuseprompt.objective.objective import BoundObjective, Evaluation, Objective
from fuseprompt.objective.problem import Problem, list_words
from fuseprompt.search.checkpoint import Checkpoint, Saved
from fuseprompt.search.method import Found, HistoryEntry, Method
from fuseprompt.search.tracking import Tracker, Tracking
from fuseprompt.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Scored:
    """A text, prefix included, with its exact losses."""

    text: str
    loss: float
    terms: Mapping[str, float]  # unweighted
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]  # the text of each id
    violation: float  # of constraints and bounds together; 0 if all are met

    @staticmethod
    def of(text: str, exact: Evaluation, tokenizer: Tokenizer) -> "Scored":
        """Return a text whose losses are known."""
        ids = tuple(tokenizer.encode(text))
        tokens = tuple(tokenizer.decode([i]) for i in ids)
        return Scored(text, exact.loss, exact.terms, ids, tokens, exact.violation)


@final
@dataclass(frozen=True)
class Result(Scored):
    """The best text found for one problem.

    Attributes:
        finished: Whether the text ends as a sentence. One that does not is a result or alternative
            only where nothing was finished, or where its loss, with the price of ending, is lower
            than that of any finished one by over 1.
        alternatives: Further texts, best first.
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

    def diverse(self, count: int, most_shared: float = 0.5) -> tuple[Scored, ...]:
        """Return this and alternatives, best first, of which no two have too many words in common.

        These are at most a share `most_shared` of the distinct words of the shorter of two texts,
        prefix and case aside.
        """
        chosen: list[tuple[Scored, set[str]]] = []
        for one in (self, *self.alternatives):
            words = set(list_words(one.text.removeprefix(self.problem.prefix)))
            limits = (most_shared * min(len(words), len(other)) for _, other in chosen)
            shared = (len(words & other) for _, other in chosen)
            if len(chosen) < count and all(map(le, shared, limits)):
                chosen.append((one, words))
        return tuple(one for one, _ in chosen)


@final
@dataclass(frozen=True)
class Progress:
    """What a callback sees after each step; losses are computed when they are first asked for."""

    step: int
    steps: int  # at most
    texts: tuple[str, ...]  # the best so far of each problem of the group
    ids: tuple[str, ...] = ()
    _bound: BoundObjective | None = field(default=None, repr=False, compare=False)

    @cached_property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Total loss and every term of each text, exact."""
        return (
            tuple(self._bound.evaluate(self.texts, range(len(self.texts)))) if self._bound else ()
        )


#: Called after each step; a search ends, with what it has found, when it returns True.
OnStep = Callable[[Progress], bool | None]


def minimize(
    objective: Objective,
    method: Method[Any] | Sequence[Method[Any]],
    problems: Sequence[Problem] | Problem | None = None,
    *,
    prefix: str = "",
    seed: int = 0,
    group_size: int = 16,
    time_limit: float | None = None,
    on_step: OnStep | None = None,
    tracker: Tracker | None = None,
    checkpoint: str | Path | None = None,
    **targets: Any,
) -> list[Result]:
    """Return for each problem the text with the lowest loss.

    Args:
        objective: The weighted sum of terms.
        method: The search and its settings; of several, each begins with what the one before found.
        problems: Problems with distinct ids; one problem, or targets as keywords, will do.
        prefix: Prefix of the problem made of keyword targets.
        seed: Fixes the result together with `group_size`; the random draws for a problem depend on
            it and on the problem, not on its group.
        group_size: Consecutive problems searched together.
        time_limit: Seconds for each group, after which the best so far is returned.
        on_step: Called after each step; the search of a group ends when it returns True.
        tracker: Gets losses by step and a table of results as a run of the project "fuseprompt":
            anything with `init`, `log` and `finish`, such as trackio or wandb.
        checkpoint: A file that is written after each step of a single group, and read where it is
            there: a search that was killed goes on, and ends with the same result.
        **targets: Targets of a single problem.

    Raises:
        ProblemError: If targets are missing or unknown, or ids repeat.
        SearchError: If a prefix or start cannot be searched from, such as one that ends in white
            space, or a checkpoint is of another search.

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
    with ExitStack() as stack:
        tracking = None
        if tracker is not None:
            tracking = stack.enter_context(Tracking(tracker, "fuseprompt", on_step=on_step))
        results = iterate(
            objective,
            method,
            problems,
            seed=seed,
            group_size=group_size,
            time_limit=time_limit,
            on_step=on_step if tracking is None else tracking.on_step,
            checkpoint=checkpoint,
        )
        return list(results if tracking is None else tracking.keep(results))


def iterate(
    objective: Objective,
    method: Method[Any] | Sequence[Method[Any]],
    problems: Sequence[Problem],
    *,
    seed: int = 0,
    group_size: int = 16,
    time_limit: float | None = None,
    on_step: OnStep | None = None,
    checkpoint: str | Path | None = None,
) -> Iterator[Result]:
    """Yield the results of `minimize` as groups finish."""
    ids = [p.id for p in problems]
    if len(set(ids)) < len(ids):
        raise ProblemError(
            f"Problems need distinct ids; repeated: {sorted({i for i in ids if ids.count(i) > 1})}."
        )
    if group_size < 1:
        raise ProblemError(f"group_size must be at least 1, was: {group_size}.")
    if checkpoint is not None and len(problems) > group_size:
        raise ProblemError(
            f"A checkpoint is of one group of problems, got {len(problems)} problems in groups of "
            f"{group_size}. Raise group_size, or search them one after another."
        )
    methods = list(method) if isinstance(method, Sequence) else [method]
    if not methods:
        raise ProblemError("Expected a method or several, got an empty list.")
    for start in range(0, len(problems), group_size):
        group = problems[start : start + group_size]
        started = time.monotonic()
        bound = objective.bind(group, seed=seed)
        settings = {
            **(describe(methods[0]) if len(methods) == 1 else {"methods": describe(methods)}),
            "weights": objective.weights,
            "terms": {t.name: _options(t) for t in objective.terms},
            "constraints": describe(objective.constraints),
            "bounds": objective.bounds,
            "group_size": group_size,
            "time_limit": time_limit,
            "device": str(objective.primary.vocabulary.device),
            "threads": torch.get_num_threads(),
            "models": {
                objective.fluency.name: objective.primary.name,
                **{t.name: t.model.name for t in objective.terms},
            },
        }
        if dtypes := objective.dtypes:
            settings["dtype"] = dtypes
        file = None
        if checkpoint is not None:
            file = Checkpoint(Path(checkpoint), bound, {**settings, "versions": versions()})
        found, fast_path = _run(bound, methods, time_limit, on_step, file)
        exact = bound
        if dtypes:
            full = objective.in_fp32()
            exact = full.bind(group, seed=seed)
            settings["loss_dtype"] = dict.fromkeys(dtypes, "float32") | full.dtypes
        seconds = (time.monotonic() - started) / len(group)
        for scored, outcome, problem in _rank(exact, found):
            best, *others = scored
            yield Result(
                **vars(best),
                problem=problem,
                finished=best.text in outcome.finished,
                alternatives=tuple(others),
                history=outcome.history,
                seed=seed,
                settings=settings,
                versions=versions(),
                fast_path=fast_path,
                seconds=seconds,
            )


def _run(
    bound: BoundObjective,
    methods: Sequence[Method[Any]],
    time_limit: float | None,
    on_step: OnStep | None,
    checkpoint: Checkpoint | None,
) -> tuple[list[Found], float]:
    """Return what the last method found, after those before it, and its share of table answers."""
    started, steps = time.monotonic(), sum(m.steps for m in methods)

    starts: dict[int, list[str]] = {}  # by method; a checkpoint begins one after each step

    def begin(number: int, before: Sequence[Found] | None) -> Any:
        own = bound.without_caches()
        if before is not None:
            if number not in starts:
                starts[number] = [scored[0].text for scored, *_ in _rank(bound, before)]
            own = own.starting_from(starts[number])
        return methods[number].init(own)

    saved = None if checkpoint is None else checkpoint.read(begin)
    now = Saved(None, 0, begin(0, None)) if saved is None else saved
    stopped = False
    while True:
        method = methods[now.number]
        while not (stopped or method.is_done(now.state)):
            now = replace(now, state=method.step(now.state))
            if checkpoint is not None:
                # What is saved is what the search itself goes on from, so that nothing but the
                # file decides how it ends.
                begun = begin(now.number, now.before)
                now = replace(now, state=checkpoint.write(now, begun))
            if on_step is not None:
                texts = tuple(f.texts[0] for f in _after(method.finish(now.state), now.before))
                ids = tuple(p.id for p in bound.problems)
                done = max((f.history[-1].step for f in now.before or () if f.history), default=0)
                stopped = bool(
                    on_step(Progress(done + now.state.num_steps, steps, texts, ids, bound))
                )
            stopped |= time_limit is not None and time.monotonic() - started > time_limit
        found = _after(method.finish(now.state), now.before)
        if stopped or now.number + 1 == len(methods):
            return found, now.state.fast_path
        now = Saved(tuple(found), now.number + 1, begin(now.number + 1, found))


def _after(found: Sequence[Found], before: Sequence[Found] | None) -> list[Found]:
    return (
        list(found) if before is None else [f.after(b) for f, b in zip(found, before, strict=True)]
    )


def _rank(
    bound: BoundObjective, found: Sequence[Found]
) -> Iterator[tuple[list[Scored], Found, Problem]]:
    """Yield the exact losses of what was found for each problem, the result first."""
    texts = [text for f in found for text in f.texts]
    index = [i for i, f in enumerate(found) for _ in f.texts]
    evaluations = iter(bound.evaluate(texts, index))
    tokenizer = bound.objective.primary.tokenizer
    for outcome, problem in zip(found, bound.problems, strict=True):
        exact = [next(evaluations) for _ in outcome.texts]
        order = outcome.order(exact, tokenizer)
        yield [Scored.of(outcome.texts[i], exact[i], tokenizer) for i in order], outcome, problem


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
    found = dict.fromkeys(("fuseprompt", "torch", "transformers", "tokenizers"), "unknown")
    for name in found:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
