"""What a search costs, beside the published procedure (`python -m benchmarks.speed search`).

Both sides search from one prefix, with the same models in one process, ours first. The ceiling is
what the bare forward passes of the same run would allow if every text were read once and every
cache were perfect (`least_work`). Each shape has a process of its own. No number is asserted here.
Read next: `fuseprompt.methods.published`.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, final

from benchmarks.speed.ceiling import REPEATS, bare_seconds, tokens_read
from benchmarks.speed.meter import Asked, ForwardMeter, least_work, recording
from benchmarks.speed.process import peak_mb, resident_mb, run_in_child
from benchmarks.speed.shapes import SETUPS, Setup
from benchmarks.speed.texts import TEXT_SETUPS, TextBench, measure_texts
from fuseprompt.errors import ProblemError
from fuseprompt.fuse.alignment import default_words
from fuseprompt.fuse.fit import FitSettings, fit_adapter
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.methods.published import PublishedSearch
from fuseprompt.search.minimize import minimize

#: Numbers of problems that are searched together.
PROBLEMS: Final = (1, 4, 16)
_STEPS: Final = 2
_BEAM_WIDTH: Final = 5
#: Words for the published side's maps: their number changes no step.
_FIT: Final = FitSettings(words_per_case=256, min_words=16, by_pairs=False)
_FIT_WORDS: Final = 4000


@final
@dataclass(frozen=True)
class Widths:
    """Candidates per beam.

    Attributes:
        ours: Where our rate is measured, in one search.
        scaling: Where several numbers of problems are compared.
        published: Where the published procedure's rate is measured, in one step of one beam.
        steps: Steps of the one search.
    """

    ours: int
    scaling: int
    published: int
    steps: int = 4


#: The paper's 512 where the run ends in time with it.
WIDTHS: Final[Mapping[str, Widths]] = {
    "paper2": Widths(512, 128, 128),
    "paper3": Widths(512, 64, 96, steps=2),
    "offline": Widths(512, 64, 256, steps=2),
}


@final
@dataclass(frozen=True)
class Scaling:
    """A number of problems searched together, two steps.

    Attributes:
        problems: How many.
        seconds_per_caption: Seconds divided by their number.
        peak_mb: Peak memory so far beyond the imported libraries, weights included, in MiB.
    """

    problems: int
    seconds_per_caption: float
    peak_mb: float


@final
@dataclass(frozen=True)
class SearchBench:
    """Speed of a search at one shape.

    Attributes:
        shapes: Name of the shape.
        published_candidates_per_s: Candidates that the published procedure scores per second.
        ours_candidates_per_s: The same of `minimize`, one problem, everything included.
        ratio: The second over the first.
        ceiling_ratio: Our rate over the rate that bare forward passes would allow.
        forward_share: Share of our wall time inside forward passes.
        token_efficiency: Tokens that perfect caches would read over those that were read.
        peak_mb: Peak memory of our side beyond the imported libraries, weights included, in MiB.
        scaling: Several problems at once, two steps.
    """

    shapes: str
    published_candidates_per_s: float
    ours_candidates_per_s: float
    ratio: float
    ceiling_ratio: float
    forward_share: float
    token_efficiency: float
    peak_mb: float
    scaling: tuple[Scaling, ...]


@final
@dataclass(frozen=True)
class Run:
    """One search of ours.

    Attributes:
        seconds: Wall time of `minimize`.
        candidates: Candidates scored exactly.
        meter: Its forward passes.
        asked: What it asked.
    """

    seconds: float
    candidates: int
    meter: ForwardMeter
    asked: tuple[Asked, ...]


def bench_search(shapes: Sequence[str]) -> Iterator[SearchBench | TextBench]:
    """Measure shapes, each in its own process, one after the other.

    Args:
        shapes: Names of `SETUPS` and `TEXT_SETUPS`.

    Yields:
        The result of each.

    Raises:
        ProblemError: If there is no such shape.
        FuseError: If one fails, or the offline models were not prepared.
    """
    names = [*SETUPS, *TEXT_SETUPS]
    unknown = sorted(set(shapes) - set(names))
    if unknown or not shapes:
        raise ProblemError(f"shapes: expected some of {', '.join(names)}, got {unknown}.")
    for name in shapes:
        row = run_in_child(
            __name__,
            f"measure_shape({name!r})",
            what=f"The shape {name}",
            hint="It needs 5 GB of memory.",
        )
        scaling = tuple(Scaling(**point) for point in row.pop("scaling", ()))
        yield TextBench(**row) if name in TEXT_SETUPS else SearchBench(**row, scaling=scaling)


def measure_shape(name: str) -> dict[str, Any]:
    """Measure a shape; the body of the child processes.

    Args:
        name: A name of `SETUPS` or `TEXT_SETUPS`.

    Returns:
        A `SearchBench` or a `TextBench` as plain values.
    """
    before = resident_mb()
    if name in TEXT_SETUPS:
        return asdict(measure_texts(name, TEXT_SETUPS[name](), memory_before=before))
    return asdict(measure(name, SETUPS[name](), WIDTHS[name], memory_before=before))


def measure(
    name: str,
    setup: Setup,
    widths: Widths,
    *,
    counts: Sequence[int] = PROBLEMS,
    memory_before: float = 0.0,
) -> SearchBench:
    """Measure both sides on a setup.

    Args:
        name: Name in the result.
        setup: Models and problems.
        widths: Candidates per beam.
        counts: Numbers of problems to compare, smallest first: a peak of memory never falls.
        memory_before: Resident memory before the models were built, in MiB.

    Returns:
        The result.
    """
    # Tables that serve all problems are made in a first search, which is not counted.
    search(setup, width=8, count=1, first=10_000)
    scaling = []
    for count in counts:
        run = search(setup, width=widths.scaling, count=count, first=100 * count)
        peak = peak_mb() - memory_before
        scaling.append(Scaling(count, round(run.seconds / count, 3), round(peak, 1)))
    # As often as every bare pass, since the fastest of each is compared.
    runs = [
        search(setup, width=widths.ours, count=1, first=5000 + i, steps=widths.steps)
        for i in range(REPEATS)
    ]
    ours = min(runs, key=lambda run: run.seconds / run.candidates)
    peak = peak_mb() - memory_before
    work = least_work(setup.objective, ours.asked)
    rate = ours.candidates / ours.seconds
    published = published_rate(setup, widths.published)
    least_tokens = sum(step.tokens for steps in work.values() for step in steps)
    return SearchBench(
        shapes=name,
        published_candidates_per_s=round(published, 2),
        ours_candidates_per_s=round(rate, 1),
        ratio=round(rate / published, 1),
        ceiling_ratio=round(bare_seconds(setup.objective, work) / ours.seconds, 3),
        forward_share=round(ours.meter.seconds / ours.seconds, 3),
        token_efficiency=round(least_tokens / tokens_read(setup.objective, ours.meter), 3),
        peak_mb=round(peak, 1),
        scaling=tuple(scaling),
    )


def search(setup: Setup, *, width: int, count: int, first: int = 0, steps: int = _STEPS) -> Run:
    """Search with our engine.

    Args:
        setup: Models and problems.
        width: Candidates per beam.
        count: Problems, searched together.
        first: Seed of the first problem.
        steps: Tokens that are appended.

    Returns:
        What it took.
    """
    # No full stop finishes a text, so that every step has all its hypotheses.
    method = AutoDAN(steps, setup.proposal, _BEAM_WIDTH, width, max_end_nats=-1.0)
    asked: list[Asked] = []
    problems = setup.problems(count, first=first)
    meter = ForwardMeter()
    with recording(asked), meter.running():
        started = time.perf_counter()
        results = minimize(setup.objective, method, problems, group_size=count)
        seconds = time.perf_counter() - started
    candidates = sum(entry.evaluations for r in results for entry in r.history)
    return Run(seconds, candidates, meter, tuple(asked))


def published_rate(setup: Setup, width: int) -> float:
    """Return how many candidates the published procedure scores per second.

    Args:
        setup: Models and problems.
        width: Candidates of its one step.
    """
    objective = setup.objective
    words = default_words()[:_FIT_WORDS]
    tables = tuple(
        fit_adapter(objective.primary, term.model, words=words, settings=_FIT)
        for term in objective.terms
    )
    classes = objective.classes()
    # The tokens that our side may append, so that both read alike.
    tokens = classes.word_initial | classes.word_internal
    bound = objective.bind(setup.problems(1, first=9000))
    for candidates in (16, width):  # the first is not counted
        method = PublishedSearch(1, candidates, _BEAM_WIDTH, tables, tokens)
        state = method.init(bound)
        started = time.perf_counter()
        state = method.step(state)
        seconds = time.perf_counter() - started
    return state.histories[0][0].evaluations / seconds
