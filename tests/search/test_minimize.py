"""The one verb: problems in, results in order, callbacks, settings as JSON."""

import json
from pathlib import Path

import pytest

from fuseprompt.errors import ProblemError
from fuseprompt.objective.problem import Forbid
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.word_table import WordTable
from fuseprompt.search.minimize import Progress, describe, iterate, minimize, versions
from tests.methods.fixtures import method, objective, problems


def test_results_come_in_order_whatever_the_groups() -> None:
    for group_size in (1, 2, 16):
        results = minimize(objective(), method(steps=2), problems(), group_size=group_size)
        assert [r.problem.id for r in results] == [p.id for p in problems()]
        assert all(r.settings["group_size"] == group_size for r in results)


def test_results_are_yielded_as_groups_finish() -> None:
    seen: list[Progress] = []
    results = iterate(objective(), method(steps=2), problems(), group_size=1, on_step=seen.append)
    assert seen == []
    next(results)
    steps = len(seen)
    assert 1 <= steps <= 3
    assert all(len(p.texts) == 1 and p.steps == 2 for p in seen)
    next(results)
    assert len(seen) > steps


def test_keyword_targets_are_one_problem() -> None:
    first = problems()[0]
    (by_keyword,) = minimize(objective(), method(steps=2), prefix=first.prefix, **first.targets)
    (by_problem,) = minimize(objective(), method(steps=2), first)
    assert by_keyword.text == by_problem.text
    with pytest.raises(ProblemError, match="not both"):
        minimize(objective(), method(), problems(), image="cat.jpg")


def test_a_prefix_beside_problems_that_have_their_own_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"prefix='A photo of' besides. Set it in each Problem"):
        minimize(objective(), method(), problems(), prefix="A photo of")


def test_no_problems_give_no_results() -> None:
    assert minimize(objective(), method(), []) == []


def test_ids_are_distinct_and_groups_not_empty() -> None:
    with pytest.raises(ProblemError, match=r"repeated: \['red'\]"):
        minimize(objective(), method(), [problems()[0], problems()[1], problems()[0]])
    with pytest.raises(ProblemError, match="group_size must be at least 1, was: 0"):
        minimize(objective(), method(), problems(), group_size=0)


def test_settings_and_versions_are_json_and_hold_what_matters() -> None:
    (result,) = minimize(objective(), method(steps=2), problems()[0], seed=7)
    settings = json.loads(json.dumps(dict(result.settings)))
    assert settings["class"] == "AutoDAN"
    assert settings["steps"] == 2
    assert settings["beam_width"] == 3
    assert settings["proposal"] == {"class": "Gradient", "num_words": 16}
    assert settings["weights"] == {"fluency": 1.0, "image": 5.0, "sentiment": 0.5}
    assert settings["models"] == {
        "fluency": "tiny-gpt2",
        "image": "tiny-clip",
        "sentiment": "tiny-classifier",
    }
    assert settings["threads"] == 1
    assert result.seed == 7
    assert result.seconds > 0
    assert 0.5 < result.fast_path <= 1.0
    assert set(versions()) == {"fuseprompt", "torch", "transformers", "tokenizers"}


def test_callbacks_are_no_settings() -> None:
    silent = describe(AdditiveWordTable(WordTable()))
    told = describe(AdditiveWordTable(WordTable(on_progress=print)))
    assert silent == told
    assert "on_progress" not in json.dumps(told)


def test_describe_gives_plain_values() -> None:
    given = {"a": (1, None, True), "b": [Forbid(("cat",))], "path": Path("x") / "y"}
    expected = {
        "a": [1, None, True],
        "b": [{"class": "Forbid", "words": ["cat"]}],
        "path": str(Path("x") / "y"),
    }
    assert describe(given) == expected
    assert describe(print) == "builtin_function_or_method"
