"""What searches for texts like other texts cost: the rows `edit` and `continuation`.

The published procedure knows neither, so there is only a ceiling. The models are the offline ones.
Read next: `benchmarks.speed.search`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Final, final

from benchmarks.speed.ceiling import REPEATS, bare_seconds, tokens_read
from benchmarks.speed.meter import (
    Asked,
    ForwardMeter,
    Work,
    least_work_of_continuations,
    least_work_of_edits,
    recording,
    recording_edits,
    work_of_reading,
)
from benchmarks.speed.process import peak_mb
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.methods.local_search import LocalSearch
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.hub import load
from fuseprompt.objective.continuation import Continuation
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency, TextSimilarity
from fuseprompt.search.minimize import minimize

#: Each is the target of a search that edits another.
SENTENCES: Final = (
    "How do I reset the password of my email account?",
    "The committee postponed the vote until next week.",
    "A man is riding a horse along the beach.",
    "I like this book because it is short and clear.",
    "The train to London leaves at nine in the morning.",
)

#: Each should follow a text.
WORDS: Final = (" Paris", " water", " music", " winter", " Monday")

#: Problems that are searched for.
_NUM_PROBLEMS: Final = 3

#: Steps of a search; the default of local search ends earlier, when it finds nothing for a while.
_STEPS: Final = 12


@final
@dataclass(frozen=True)
class TextBench:
    """Speed of a search for texts.

    Attributes:
        shapes: Name of the row.
        ours_candidates_per_s: Candidates that `minimize` scores exactly per second, all terms,
            one problem, everything included.
        ceiling_ratio: This rate over the rate that bare forward passes would allow.
        forward_share: Share of the wall time inside forward passes.
        token_efficiency: Tokens that perfect caches would read over those that were read.
        peak_mb: Peak memory beyond the imported libraries, weights included, in MiB.
    """

    shapes: str
    ours_candidates_per_s: float
    ceiling_ratio: float
    forward_share: float
    token_efficiency: float
    peak_mb: float


@final
@dataclass(frozen=True, eq=False)
class TextSetup:
    """An objective, a method, and problems that differ.

    Attributes:
        objective: The objective.
        method: The search.
        problems: What is searched for.
    """

    objective: Objective
    method: LocalSearch | AutoDAN
    problems: tuple[Problem, ...]

    @property
    def edits(self) -> bool:
        """Whether whole texts are edited."""
        return isinstance(self.method, LocalSearch)


@final
@dataclass(frozen=True)
class TextRun:
    """One search: its wall time, the candidates scored, its passes, and the least work."""

    seconds: float
    candidates: int
    meter: ForwardMeter
    work: Mapping[str, tuple[Work, ...]]


def edit_setup(lm: CausalLM, encoder: Any, *, steps: int = _STEPS) -> TextSetup:
    """Return a local search for texts that are similar to others."""
    objective = Objective([Fluency(lm), TextSimilarity(encoder, weight=20.0)])
    problems = (
        Problem(str(i), {"text": target}, start=start)
        for i, (target, start) in enumerate(permutations(SENTENCES, 2))
    )
    return TextSetup(objective, LocalSearch(steps, patience=steps), tuple(problems))


def continuation_setup(lm: CausalLM, *, steps: int = _STEPS) -> TextSetup:
    """Return a search for texts that a word should follow; one model writes and reads them."""
    objective = Objective([Fluency(lm), Continuation(lm)])
    problems = (Problem(word.strip(), {"continuation": word}) for word in WORDS)
    return TextSetup(objective, AutoDAN(steps, max_end_nats=-1.0), tuple(problems))


def _load_writer() -> CausalLM:
    model = load("offline:lm")
    assert isinstance(model, CausalLM)
    return model


#: How each row is built.
TEXT_SETUPS: Final[Mapping[str, Callable[[], TextSetup]]] = {
    "edit": lambda: edit_setup(_load_writer(), load("offline:sentence")),
    "continuation": lambda: continuation_setup(_load_writer()),
}


def measure_texts(name: str, setup: TextSetup, *, memory_before: float = 0.0) -> TextBench:
    """Measure a row.

    Args:
        name: Name in the result.
        setup: Models and problems.
        memory_before: Resident memory before the models were built, in MiB.

    Returns:
        The result.
    """
    # Tables that serve all problems are made in a first search, which is not counted.
    search_texts(setup, setup.problems[-1])
    # The fastest of several searches counts, which find the same, and of bare passes in between:
    # each search has its own texts and its own ceiling, and no machine is as fast all the time.
    runs, ratios = [], []
    for problem in setup.problems[:_NUM_PROBLEMS]:
        tries, bare = [], []
        for _ in range(REPEATS):
            tries.append(search_texts(setup, problem))
            work, edits = tries[0].work, setup.edits
            bare.append(bare_seconds(setup.objective, work, at_all_tokens=edits, repeats=1))
        runs.append(min(tries, key=lambda run: run.seconds))
        ratios.append(min(bare) / runs[-1].seconds)
    peak = peak_mb() - memory_before
    seconds = sum(run.seconds for run in runs)
    least = sum(step.tokens for run in runs for steps in run.work.values() for step in steps)
    return TextBench(
        shapes=name,
        ours_candidates_per_s=round(sum(run.candidates for run in runs) / seconds, 1),
        ceiling_ratio=round(sum(ratios) / len(ratios), 3),
        forward_share=round(sum(run.meter.seconds for run in runs) / seconds, 3),
        token_efficiency=round(
            least / sum(tokens_read(setup.objective, run.meter) for run in runs), 3
        ),
        peak_mb=round(peak, 1),
    )


def search_texts(setup: TextSetup, problem: Problem) -> TextRun:
    """Search for one problem.

    Args:
        setup: Models and method.
        problem: What is searched for.

    Returns:
        What it took.
    """
    meter = ForwardMeter()
    asked: list[Asked] = []
    exact: list[Asked] = []
    watching = recording_edits(asked, exact) if setup.edits else recording(asked)
    with watching, meter.running():
        started = time.perf_counter()
        (result,) = minimize(setup.objective, setup.method, problem)
        seconds = time.perf_counter() - started
    following = problem.targets.get("continuation", "")
    if setup.edits:
        work = least_work_of_edits(setup.objective, asked, exact)
    else:
        work = least_work_of_continuations(setup.objective, asked, following)
    # Losses that are reported are computed again, from the texts alone.
    texts = [result.text, *(other.text for other in result.alternatives)]
    again = work_of_reading(setup.objective, texts, following)
    work = {name: (*steps, *again[name]) for name, steps in work.items()}
    candidates = sum(entry.evaluations for entry in result.history)
    return TextRun(seconds, candidates, meter, work)
