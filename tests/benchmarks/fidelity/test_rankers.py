"""Rankers: orders, ties, costs."""

from dataclasses import replace

import pytest
import torch

from benchmarks.fidelity.exact_losses import compute
from benchmarks.fidelity.models import context_of, plan, targets_of
from benchmarks.fidelity.rankers import (
    LanguageModelRanker,
    ProposalRanker,
    RandomMapsRanker,
    all_rankers,
)
from benchmarks.fidelity.study import place_of
from benchmarks.random_maps import RandomMaps
from fuseprompt.fuse.alignment import default_words
from fuseprompt.fuse.fit import fit_adapter
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.proposals import Fuse, Gradient, Positions, WordTable
from fuseprompt.text.retokenize import RetokenizationTable
from tests.benchmarks.fidelity.tiny_truth import tiny_models


@pytest.fixture(scope="module")
def setting():
    """Return truth, place, bound term and language model of one context."""
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


def test_a_place_has_one_token_per_text_the_likeliest(setting) -> None:
    truth, place, _, _ = setting
    for row in range(0, len(place.tokens), 5):
        inside = truth.rows == row
        assert float(place.log_probs[row]) == float(truth.log_probs[inside].max())
        assert int(place.tokens[row]) in truth.tokens[inside].tolist()
    assert not bool((place.word_initial & place.word_internal).any())


def test_the_language_model_orders_by_probability(setting) -> None:
    _, place, bound, model = setting
    predicted = LanguageModelRanker().predict(model, bound, place)
    everything = torch.arange(len(place.tokens))
    order = place.order(everything, predicted.scores[3])
    assert predicted.cost(place, everything) == 0.0
    assert bool((place.log_probs[order].diff() <= 0).all())


@pytest.mark.shapes
def test_a_proposal_orders_by_what_it_predicts(setting) -> None:
    _, place, bound, model = setting
    predicted = ProposalRanker(Gradient(2), "gradient").predict(model, bound, place)
    initial = torch.nonzero(place.word_initial).flatten()
    positions = Positions.append((place.context.left,), torch.tensor([5]))
    scorer = Gradient(2).init(model, bound.model, bound.table).bind(bound)
    expected = scorer.word_initial(positions, place.tokens[initial])[0]
    order = place.order(initial, predicted.scores[5, initial])
    assert bool((expected[order].diff() >= -1e-5).all())
    # Two points, loss and gradient at each.
    assert predicted.cost(place, initial) == 6.0


def test_what_a_proposal_is_not_asked_about_comes_last_by_probability(setting) -> None:
    _, place, bound, model = setting
    internal = torch.nonzero(place.word_internal).flatten()
    ranker = ProposalRanker(Gradient(1), "gradient", num_internal=3)
    scores = ranker.predict(model, bound, place).scores[0, internal]
    order = place.order(internal, scores)
    likely = torch.argsort(place.log_probs[internal], descending=True, stable=True)
    assert set(order[:3].tolist()) == set(likely[:3].tolist())
    assert torch.equal(order[3:], likely[3:])


def test_a_word_table_pays_for_word_internal_tokens(setting, tmp_path) -> None:
    _, place, bound, model = setting
    ranker = ProposalRanker(WordTable(tmp_path), "table", num_internal=4)
    predicted = ranker.predict(model, bound, place)
    assert predicted.internal_cost > 0
    assert predicted.initial_cost == 0


def test_all_rankers_have_names_of_their_own_and_the_default_is_among_them() -> None:
    names = [r.name for r in all_rankers()]
    assert len(set(names)) == len(names)
    assert AutoDAN().proposal.name in names


def test_random_maps_are_all_random_and_as_large_as_the_fitted_ones(setting, monkeypatch) -> None:
    _, place, bound, model = setting
    fitted = fit_adapter(model, bound.model, words=default_words()[:1000])
    for module in ("fuseprompt.proposals.fuse", "benchmarks.random_maps"):
        monkeypatch.setattr(f"{module}.load_or_fit", lambda *_, **__: fitted)
    random = [RandomMaps(seed=seed).init(model, bound.model, bound.table).maps for seed in (0, 1)]
    again = RandomMaps(seed=1).init(model, bound.model, bound.table).maps
    assert set(random[0].jacobians) == set(fitted.jacobians) != set()
    for counts, jacobian in fitted.jacobians.items():
        one, other = (maps.jacobians[counts] for maps in random)
        assert one.shape == jacobian.shape
        assert torch.equal(other, again.jacobians[counts])
        cosine = torch.nn.functional.cosine_similarity
        assert abs(float(cosine(one.flatten(), other.flatten(), dim=0))) < 0.2
        assert abs(float(cosine(one.flatten(), jacobian.flatten(), dim=0))) < 0.2
    sizes = [
        sum(float(x.square().mean()) for x in t.jacobians.values()) for t in (fitted, random[0])
    ]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.3)
    # Another context has another draw; what it costs is what fitted maps cost.
    ranker = RandomMapsRanker()
    here, fuse = (
        r.predict(model, bound, place) for r in (ranker, ProposalRanker(Fuse(), "fuse", None))
    )
    there = ranker.predict(model, bound, replace(place, context=replace(place.context, index=5)))
    assert not torch.allclose(here.scores, there.scores)
    everything = torch.arange(len(place.tokens))
    assert here.cost(place, everything) == fuse.cost(place, everything)
