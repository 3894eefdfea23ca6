"""Rankers: orders, ties, costs."""

import dataclasses

import pytest
import torch

from benchmarks.fidelity.arms import all_rankers, default_name
from benchmarks.fidelity.exact_losses import compute
from benchmarks.fidelity.models import context_of, plan, targets_of
from benchmarks.fidelity.rankers import (
    LanguageModelRanker,
    Place,
    Question,
    TransferRanker,
)
from benchmarks.fidelity.study import place_of
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.transfer import (
    CommonWords,
    NoTransfer,
    RetokenizedTransfer,
    WordTable,
)
from tests.benchmarks.fidelity.tiny_truth import tiny_models


@pytest.fixture(scope="module")
def setting():
    """Return truth, place and bound term of one context."""
    models = tiny_models()
    cell = plan([("sentence", "append")], 1)[0]
    tower, primary = models.tower("sentence"), models.primary
    truth = compute(primary, tower, context_of(models, cell), targets_of(tower, 0))
    place = place_of(truth, 8, primary.model.tokenizer.token_texts)
    table = RetokenizationTable(primary.model.tokenizer, tower.terms["similarity"].model.tokenizer)
    bound = BoundTerm(
        tower.terms["similarity"], truth.targets["similarity"], tuple(range(8)), table
    )
    return truth, place, bound, primary.model


def question(place: Place, problem: int = 0, weight: float = 1.0, prior=None) -> Question:
    chosen = torch.arange(len(place.tokens))
    return Question(
        place, problem, chosen, torch.zeros(len(chosen)) if prior is None else prior, weight
    )


def never(_positions):
    raise AssertionError("this ranker asks for nothing")


def test_a_place_has_one_token_per_text_the_likeliest(setting) -> None:
    truth, place, _, _ = setting
    for row in range(0, len(place.tokens), 5):
        inside = truth.rows == row
        assert float(place.log_probs[row]) == float(truth.log_probs[inside].max())
        assert int(place.tokens[row]) in truth.tokens[inside].tolist()
    assert not bool((place.is_new & place.continues).any())


def test_the_language_model_orders_by_probability(setting) -> None:
    _, place, bound, model = setting
    ranking = LanguageModelRanker().bind(model, bound.table, bound).order(question(place), never)
    assert ranking.cost == 0.0
    assert bool((place.log_probs[ranking.order].diff() <= 0).all())


def test_a_transfer_that_knows_nothing_leaves_the_language_models_order(setting) -> None:
    _, place, bound, model = setting
    nothing = TransferRanker(NoTransfer(), "nothing", num_continuations=None)
    chosen = torch.nonzero(place.is_new | place.continues).flatten()
    asked = dataclasses.replace(question(place), chosen=chosen, prior=torch.zeros(len(chosen)))
    ours = nothing.bind(model, bound.table, bound).order(asked, never)
    theirs = LanguageModelRanker().bind(model, bound.table, bound).order(asked, never)
    assert torch.equal(ours.order, theirs.order)


def test_a_transfer_orders_by_what_it_predicts(setting) -> None:
    _, place, bound, model = setting
    transfer = RetokenizedTransfer(CommonWords(2))
    ranker = TransferRanker(transfer, "direct").bind(model, bound.table, bound)
    new = torch.nonzero(place.is_new).flatten()
    from fuseprompt.transfer import Slots

    slots = Slots.append((place.context.left,), torch.tensor([5]))
    expected = transfer.bind(model, bound.table, bound).new_words(slots, place.tokens[new])[0]
    asked = Question(place, 5, new, torch.zeros(len(new)), 1.0)
    ranking = ranker.order(asked, never)
    assert bool((expected[ranking.order].diff() >= -1e-5).all())
    # Two points, loss and gradient at each.
    assert ranking.cost == 6.0


def test_the_prior_decides_where_it_is_large(setting) -> None:
    _, place, bound, model = setting
    prior = torch.arange(len(place.tokens)).float() * 1e4
    ranker = TransferRanker(RetokenizedTransfer(CommonWords(1)), "direct", num_continuations=None)
    ranking = ranker.bind(model, bound.table, bound).order(question(place, 0, 1.0, prior), never)
    known = place.is_new | place.continues
    assert bool((ranking.order[: int(known.sum())].diff() > 0).all())


def test_what_a_transfer_is_not_asked_about_comes_last_by_probability(setting) -> None:
    _, place, bound, model = setting
    chosen = torch.nonzero(place.continues).flatten()
    asked = Question(place, 0, chosen, torch.zeros(len(chosen)), 1.0)
    ranker = TransferRanker(RetokenizedTransfer(CommonWords(1)), "direct", num_continuations=3)
    order = ranker.bind(model, bound.table, bound).order(asked, never).order
    likely = torch.argsort(place.log_probs[chosen], descending=True, stable=True)
    assert set(order[:3].tolist()) == set(likely[:3].tolist())
    assert torch.equal(order[3:], likely[3:])


def test_a_word_table_pays_for_continuations_of_each_target(setting, tmp_path) -> None:
    _, place, bound, model = setting
    chosen = torch.nonzero(place.continues).flatten()
    ranker = TransferRanker(WordTable(tmp_path), "table", num_continuations=4)
    scorer = ranker.bind(model, bound.table, bound)
    costs = [
        scorer.order(Question(place, p, chosen, torch.zeros(len(chosen)), 1.0), never).cost
        for p in (0, 7)
    ]
    assert costs[0] == costs[1] > 0


def test_all_rankers_have_names_of_their_own_and_the_default_is_among_them() -> None:
    names = [r.name for r in all_rankers()]
    assert len(set(names)) == len(names)
    assert not any("," in name for name in names)  # --transfers takes them with commas.
    assert default_name() in names
    assert {"none", "random", "context-free", "tproduct", "direct-16", "direct-64"} <= set(names)
