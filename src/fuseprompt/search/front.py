"""The front of an objective: texts of which none is better than another in every term."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import product
from typing import Any

from fuseprompt.errors import ProblemError
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.search.method import Method
from fuseprompt.search.minimize import Scored, minimize


def front(
    objective: Objective,
    method: Method[Any] | Sequence[Method[Any]],
    problems: Sequence[Problem] | Problem,
    weights: Mapping[str, Sequence[float]],
    *,
    seed: int = 0,
    group_size: int = 16,
) -> list[tuple[Scored, ...]]:
    """Return for each problem the texts that no other text found beats in every term.

    Args:
        objective: Its own weights hold where `weights` names no other, and in `loss`.
        method: The search, or several one after another.
        problems: Problems with distinct ids, or one problem.
        weights: Weights to try of terms by name, every combination: {"image": [4, 8, 16]}.
        seed: Seed of each search.
        group_size: Consecutive problems searched together.

    Returns:
        The Pareto front (of unweighted losses) of all results and alternatives of all searches, the
        most fluent text first. Of texts that miss a constraint or bound only the nearest count, and
        only if none meets all.

    Raises:
        ProblemError: If a term is unknown or without weights, or as `minimize` does.
    """
    if empty := sorted(name for name, values in weights.items() if not values):
        raise ProblemError(f"Expected weights of {empty}, got none. Pass one or more of each.")
    group = [problems] if isinstance(problems, Problem) else problems
    found: list[dict[str, Scored]] = [{} for _ in group]
    for values in product(*weights.values()):
        tried = objective.reweighted(dict(zip(weights, values, strict=True)))
        results = minimize(tried, method, group, seed=seed, group_size=group_size)
        for known, result in zip(found, results, strict=True):
            for one in (result, *result.alternatives):
                own = {f.name: getattr(one, f.name) for f in fields(Scored)}
                own["loss"] = sum(objective.weights[n] * v for n, v in one.terms.items())
                known.setdefault(one.text, Scored(**own))
    return [_not_beaten(list(known.values()), objective.fluency.name) for known in found]


def _not_beaten(texts: Sequence[Scored], fluency: str) -> tuple[Scored, ...]:
    least = min((one.violation for one in texts), default=0.0)
    kept = [one for one in texts if one.violation == least]
    best = [one for one in kept if not any(_beats(other, one) for other in kept)]
    return tuple(sorted(best, key=lambda one: (one.terms[fluency], one.token_ids)))


def _beats(one: Scored, other: Scored) -> bool:
    """Return whether a text is nowhere worse and somewhere better than another."""
    pairs = [(value, other.terms[name]) for name, value in one.terms.items()]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
