"""Rewritten texts: bounds are kept, what is not found says so, and one bad text is one record."""

from pathlib import Path

import pytest

from fuseprompt.errors import ProblemError, UsageError
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem, count_changed, word_changes
from fuseprompt.search.minimize import Scored
from fuseprompt.tasks import rewrite as module
from fuseprompt.tasks.job import Failure
from fuseprompt.tasks.rewrite import Rewrite, objective_of, rewrite
from fuseprompt.tasks.settings import RewriteSettings
from tests.tasks.fixtures import save_rewriter

TEXTS = ("An image of a happy dog on a road.", "The cat is on the old bridge at night.")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return save_rewriter(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))


def both(models: dict[str, str], *texts: str, **more: object) -> tuple[Rewrite, Objective]:
    """Return the first text rewritten to a label that it does not have, and the objective."""
    settings = RewriteSettings(label="negative", **models, **more)  # type: ignore[arg-type]
    objective = objective_of(settings)
    own = module._label_of(objective.terms[1].model, texts[0])  # type: ignore[arg-type]
    other = next(name for name in objective.terms[1].model.labels if name != own)  # type: ignore
    settings = RewriteSettings(label=other, **models, **more)  # type: ignore[arg-type]
    one = next(rewrite(texts, settings, objective=objective))
    assert isinstance(one, Rewrite)
    return one, objective


def test_a_text_that_is_found_keeps_to_all_bounds(models: dict[str, str]) -> None:
    found = 0
    for text in TEXTS:
        one, objective = both(models, text, keep=0.1, max_changed=0.5, less_fluent=2.0)
        label = objective.terms[1].model
        assert one.original == text
        assert one.changes == tuple(word_changes(text, one.text))
        assert one.label_before == module._label_of(label, text)  # type: ignore[arg-type]
        assert one.label_after == module._label_of(label, one.text)  # type: ignore[arg-type]
        assert one.fluency_before == pytest.approx(
            objective.fluency.evaluate([text], [one.result.problem])[0], abs=1e-5
        )
        assert count_changed(text, one.text) <= 0.5 * len(text.split())
        assert one.similarity >= 0.1 - 1e-4
        assert one.result.terms["fluency"] <= one.fluency_before + 2.0 + 1e-4
        assert one.found == (one.label_after == one.result.problem.targets["label"])
        assert one.text == one.result.text
        found += one.found
    assert found


def test_where_nothing_may_change_nothing_is_found(models: dict[str, str]) -> None:
    one, _ = both(models, TEXTS[0], max_changed=0.0)
    assert (one.found, one.text, one.changes) == (False, TEXTS[0], ())


def test_a_text_that_has_the_label_stays_as_it_is(models: dict[str, str]) -> None:
    settings = RewriteSettings(label="negative", **models)  # type: ignore[arg-type]
    objective = objective_of(settings)
    own = module._label_of(objective.terms[1].model, TEXTS[0])  # type: ignore[arg-type]
    same = RewriteSettings(label=own.upper(), **models)  # type: ignore[arg-type]
    one = next(rewrite(TEXTS[0], same, objective=objective))
    assert isinstance(one, Rewrite)
    assert (one.found, one.text, one.label_before) == (True, TEXTS[0], one.label_after)
    assert one.result.history == ()


def test_a_bad_text_is_one_failure_among_others(models: dict[str, str]) -> None:
    settings = RewriteSettings(label="positive", time_limit=0.01, **models)  # type: ignore[arg-type]
    texts = [TEXTS[0], "  ", "dog " * 400, "?!", TEXTS[1]]
    results = list(rewrite(texts, settings))
    assert [isinstance(one, Failure) for one in results] == [False, True, True, True, False]
    empty, long, _ = (one.error for one in results if isinstance(one, Failure))
    assert empty == "text 2 '': expected words to edit. Leave it out."
    assert "takes" in long
    assert "Shorten it." in long


@pytest.mark.shapes
def test_words_may_be_forbidden_and_required(models: dict[str, str]) -> None:
    one, _ = both(models, TEXTS[0], keep=0.0, max_changed=1.0, forbid=("dog",), less_fluent=9.0)
    assert "dog" not in one.text.split()


def test_an_unknown_label_lists_the_labels_at_once(models: dict[str, str]) -> None:
    for label in ("angry", "not angry"):
        settings = RewriteSettings(label=label, **models)  # type: ignore[arg-type]
        with pytest.raises(ProblemError, match=rf"no label '{label}'; its labels are \['negative'"):
            rewrite(TEXTS[0], settings)


@pytest.mark.parametrize(("label", "ask"), [("not negative", "{} Sentiment:"), ("positive", "")])
def test_without_a_label_to_name_the_language_model_is_not_asked(
    models: dict[str, str], label: str, ask: str
) -> None:
    settings = RewriteSettings(label=label, ask=ask, time_limit=0.01, **models)  # type: ignore[arg-type]
    one = next(rewrite(TEXTS[0], settings))
    assert isinstance(one, Rewrite)
    assert "opinion" not in one.result.terms
    assert "opinion" in objective_of(RewriteSettings(label="positive", **models)).weights  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", ["Sentiment:", "{} {}"])
def test_a_question_without_the_text_is_refused(ask: str) -> None:
    with pytest.raises(UsageError, match=r"expected one \{\} where the text"):
        RewriteSettings(label="positive", ask=ask)


def test_changes_that_are_not_needed_are_undone(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNDONE", 9.0)
    settings = RewriteSettings(label="positive", **models)  # type: ignore[arg-type]
    objective = objective_of(settings)
    start, changed = "a dog and a cat", "a dog but the river"
    problem = Problem(
        "0", {"text": start, "label": "positive", "opinion": [("{} is", " a")]}, start=start
    )
    objective = Objective([objective.fluency, *objective.terms])
    (exact,) = objective.bind([problem]).evaluate([changed], [0])
    best = Scored.of(changed, exact, objective.primary.tokenizer)
    assert module._undo(objective, problem, best, 99.0, lambda text: text == changed) is best
    kept = module._undo(objective, problem, best, 99.0, lambda text: "river" in text)
    (want,) = objective.bind([problem]).evaluate([kept.text], [0])
    assert kept.text == "a dog and a river"
    assert kept.loss == pytest.approx(want.loss, abs=1e-5)
    fluent = module._undo(objective, problem, best, 0.0, lambda text: "river" in text)
    assert fluent.terms["fluency"] <= best.terms["fluency"]
