"""Texts that elicit: what is reported is what the models do, and bad items cost one record."""

from copy import copy
from dataclasses import replace

import pytest
import torch

from fuseprompt.errors import UsageError
from fuseprompt.objective.continuation import Continuation
from fuseprompt.tasks.elicit import Elicited, elicit, go_on, objective_for, telling
from fuseprompt.tasks.job import Failure
from fuseprompt.tasks.settings import ElicitSettings
from fuseprompt.text.retokenize import PaddedIds
from tests.tiny import gpt2, llama

SETTINGS = ElicitSettings(max_tokens=3)
PAIRS = [("{} The sky is", " blue"), ("{}", " green grass")]


def objective():
    models = [copy(gpt2()), copy(llama())]  # All tests share the models, and their names.
    for model, name in zip(models, ("first", "second"), strict=True):
        model.name = name
    return objective_for(models, SETTINGS)


@pytest.fixture(scope="module")
def found() -> Elicited:
    (one,) = elicit([PAIRS], SETTINGS, objective=objective())
    assert isinstance(one, Elicited)
    return one


@pytest.mark.shapes
def test_nll_and_rank_are_those_of_each_model_in_each_context(found: Elicited) -> None:
    for model, name in ((gpt2(), "first"), (llama(), "second")):
        for i, (template, following) in enumerate(PAIRS):
            filled = template.replace("{}", found.text)
            ids = model.tokenizer.encode(filled + following)
            before = model.tokenizer.encode(filled)
            assert ids[: len(before)] == before
            nll = model.nll([ids], [len(before)])[0][:-1]
            assert found.nll[name][i] == pytest.approx(float(nll.mean()), abs=1e-4)
            log_probs = model.next_log_probs(torch.tensor([before]))[0]
            order = log_probs.argsort(descending=True).tolist()
            assert found.rank[name][i] == order.index(ids[len(before)]) + 1


def test_what_a_model_goes_on_with_is_its_likeliest_tokens(found: Elicited) -> None:
    model = gpt2()
    for i, (template, _) in enumerate(PAIRS):
        for text, shown in zip(
            (template.replace("{}", "").strip(), template.replace("{}", found.text)),
            found.goes_on["first"][i],
            strict=True,
        ):
            ids = model.tokenizer.encode(text) or model.end_ids[:1].tolist()
            first = int(model.next_log_probs(torch.tensor([ids]))[0].argmax())
            assert shown.startswith(model.tokenizer.decode([first]))


def test_nothing_is_shown_behind_the_end_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = gpt2().tokenizer
    (end,) = tokenizer.special_ids_of(tokenizer.special_texts[0])
    answers = iter([tokenizer.encode("blue")[0], end, *tokenizer.encode("a") * 8])

    def next_log_probs(_: object, rows: PaddedIds) -> torch.Tensor:
        best = torch.full((len(rows),), next(answers))
        return torch.nn.functional.one_hot(best, len(tokenizer.token_texts)).float()

    monkeypatch.setattr("fuseprompt.tasks.elicit.PrefixCache.next_log_probs", next_log_probs)
    first = tokenizer.decode(tokenizer.encode("blue")[:1])
    assert go_on(gpt2(), ["The sky", "It"]) == [first, first]


def test_the_loss_is_fluency_and_the_mean_of_the_models(found: Elicited) -> None:
    terms = found.result.terms
    each = [sum(found.nll[m]) / len(PAIRS) for m in ("first", "second")]
    assert [terms["first"], terms["second"]] == pytest.approx(each, abs=1e-4)
    assert found.result.loss == pytest.approx(terms["fluency"] + 1.5 * sum(each), abs=1e-4)


def test_no_text_says_what_should_follow(found: Elicited) -> None:
    words = {word.strip(".,").lower() for word in found.text.split()}
    assert not words & {"blue", "green", "grass", "blues"}
    assert telling((" a glass of water",)).words[::3] == ("glass", "water")
    assert telling((" to us",)).words[::3] == ("to", "us")


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (("It is", " red"), r"a template has one \{\} where the text goes, got 'It is red'"),
        (("{} or {}", " red"), r"a template has one \{\}"),
        (("{}", ""), r"'' cannot follow 'a'"),
        (("{}", "  "), "begins with one or a line break, such as ' Paris'"),
        (("{} It is", "red"), r"'red' cannot follow 'a It is'"),
        (("{} It is ", " red"), "a template that ends in no blank"),
    ],
)
def test_a_bad_item_costs_one_record(pair: tuple[str, str], message: str) -> None:
    bad, good = elicit([[pair], " blue"], SETTINGS, objective=objective())
    assert isinstance(bad, Failure)
    assert isinstance(good, Elicited)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(bad.error)


def test_models_are_named_once_with_commas_or_several_times() -> None:
    settings = ElicitSettings(models=("a,b", "b", " c"))
    assert settings.model_ids == ["a", "b", "c"]
    with pytest.raises(UsageError, match="at least one language model"):
        replace(settings, models=(" ,",))


def test_every_model_has_a_term() -> None:
    terms = objective().terms
    assert [(t.name, t.weight) for t in terms] == [("first", 1.5), ("second", 1.5)]
    assert all(isinstance(term, Continuation) for term in terms)
