"""What holds for every method: it finds what is there, and its text alone decides the loss."""

from pathlib import Path
from typing import Any

import pytest

from fuseprompt.methods import GCG, EditBeam, LocalSearch, PublishedSearch, RandomSearch
from fuseprompt.objective.problem import Forbid, Problem
from fuseprompt.proposals.gradient import Gradient
from fuseprompt.search.method import Method
from fuseprompt.search.minimize import Progress, Result, minimize
from tests.methods import planted
from tests.methods.fixtures import PREFIX, method, methods, objective, problems, random_table
from tests.methods.planted import PLANTED
from tests.methods.test_grouping import assert_same_results
from tests.tiny import classifier, clip, gpt2

NAMES = tuple(methods())

#: Those whose history is of texts without an end.
GROWING = ("autodan", "uniform")

#: Those that edit whole texts, so that they can be given one.
EDITING: dict[str, Any] = {
    "local": LocalSearch(6, Gradient(4), search_width=512, num_exact=64),
    "beam": EditBeam(3, Gradient(4), beam_width=2, search_width=512, num_exact=64),
    "gcg": GCG(12, Gradient(4), top_k=32, search_width=192),
    "random": RandomSearch(30, search_width=256),
}


@pytest.mark.parametrize("name", EDITING)
def test_a_planted_text_is_found(name: str) -> None:
    (result,) = minimize(planted.objective(), EDITING[name], planted.problem())
    assert result.text == PLANTED
    assert result.loss == pytest.approx(0.0, abs=1e-6)


def test_random_search_goes_on_from_a_better_text_only() -> None:
    search = RandomSearch(12, search_width=2)
    state = search.init(planted.objective().bind([planted.problem()]))
    before = [state.problems[0].current]
    for _ in range(search.steps):
        state = search.step(state)
        (problem,) = state.problems
        assert problem.current == before[-1] or problem.current.is_better(before[-1])
        before.append(problem.current)
    assert len({one.text for one in before}) < len(before), "some changes were worse"


def test_the_methods_keep_the_protocol() -> None:
    assert all(isinstance(each, Method) for each in methods().values())


@pytest.mark.parametrize(
    "setting",
    [pytest.param("plain", marks=pytest.mark.shapes), "template", "constraint", "bound"],
)
@pytest.mark.parametrize("name", NAMES)
def test_the_reported_loss_is_that_of_the_text_alone(name: str, setting: str) -> None:
    """Of the result, of its alternatives, and of every step where texts are whole."""
    more: Any = {"start": f"{PREFIX} a dog on a road."}
    if setting == "template":
        more["template"] = "She said: {} Yes."
    # What only appends cannot make a forbidden start good.
    banned = ("the",) if name in GROWING else ("the", "dog")
    constraints = [Forbid(banned)] if setting == "constraint" else []
    bounds = {"sentiment": 0.6} if setting == "bound" else {}
    asked = problems(**more)[:2]
    terms = objective(*constraints, **bounds)
    results = minimize(terms, methods()[name], asked)
    for problem, result in zip(asked, results, strict=True):
        alone = terms.bind([problem])
        for found in (result, *result.alternatives):
            (want,) = alone.evaluate([found.text], [0])
            assert found.terms == pytest.approx(want.terms, abs=1e-5, rel=1e-5)
            assert found.loss == pytest.approx(want.loss, abs=1e-5, rel=1e-5)
            assert found.violation == pytest.approx(want.violation, abs=1e-5, rel=1e-5)
        assert len(result.history) > 1
        if name not in GROWING:
            texts = [entry.text for entry in result.history]
            exact = alone.evaluate(texts, [0] * len(texts))
            want = [each.loss for each in exact]
            assert [e.loss for e in result.history] == pytest.approx(want, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_no_text_depends_on_other_problems(name: str) -> None:
    """Also from texts of different length, which are drawn at random where none is given."""
    starts = (f"{PREFIX} the dog on a road.", None, f"{PREFIX} a table in the river at night.")
    asked = [
        Problem(p.id, p.targets, PREFIX, start) for p, start in zip(problems(), starts, strict=True)
    ]
    terms = objective()
    together = minimize(terms, methods()[name], asked)
    alone = [minimize(terms, methods()[name], problem)[0] for problem in asked]
    assert_same_results(together, alone)
    assert len({result.text for result in together}) == 3


@pytest.mark.parametrize("name", [*NAMES, "published"])
def test_a_killed_search_ends_as_if_it_had_not_been(name: str, tmp_path: Path) -> None:
    """Killed at the end of the method before it, after its own first step, and near its end."""
    tables = tuple(random_table(gpt2(), m, by_pairs=False) for m in (clip(), classifier()))
    published = PublishedSearch(3, 8, 2, tables=tables)
    chain = [method(steps=1), published if name == "published" else methods()[name]]
    asked, terms = problems()[:2], objective()

    def search(file: Path, kill_at: int) -> list[Result]:
        def on_step(progress: Progress) -> None:
            if progress.step == kill_at:
                raise KeyboardInterrupt

        return minimize(terms, chain, asked, checkpoint=file, on_step=on_step)

    want = search(tmp_path / "whole", -1)
    steps = max(len(result.history) for result in want)
    assert steps > 3
    for step in (1, 2, steps - 1):
        file = tmp_path / f"killed-{step}"
        with pytest.raises(KeyboardInterrupt):
            search(file, step)
        assert [facts(r) for r in search(file, -1)] == [facts(r) for r in want]


def facts(result: Result) -> str:
    """Return all that a search decides, to the last bit."""
    names = ("text", "loss", "terms", "token_ids", "violation", "alternatives", "history")
    return repr([getattr(result, name) for name in names])
