"""PEZ: gradients through fitted maps and of fluency, and what stays as it is."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from fuseprompt.fuse.fit import FitSettings, fit_adapter
from fuseprompt.methods import PEZ
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.proposals.fuse import Fuse
from fuseprompt.search.minimize import minimize
from fuseprompt.text.retokenize import PaddedIds
from tests.methods import planted
from tests.methods.fixtures import methods, objective, problems
from tests.methods.planted import PLANTED
from tests.tiny import gpt2


@pytest.mark.parametrize("is_shared", [False, True])
def test_pez_finds_a_planted_text_through_maps(is_shared: bool) -> None:
    """Maps of words of one token, or that of Eq. 3; without its gradient nothing is found."""
    objective = planted.objective(gpt2().tokenizer if is_shared else None)
    words = [text[1:] for text in gpt2().tokenizer.token_texts if text[:1] == " " != text]
    settings = FitSettings(min_words=8)
    table = fit_adapter(gpt2(), objective.terms[0].model, words=words, settings=settings)
    (result,) = minimize(objective, PEZ(50, maps=Fuse((table,))), planted.problem(prefix="an old"))
    assert result.text == PLANTED
    assert sum(entry.evaluations for entry in result.history) < 12


@pytest.mark.parametrize("template", ["{}", "She said: {} Yes."])
def test_the_gradient_of_fluency(template: str) -> None:
    """Differences of the loss in what the model reads, and least squares in what it chooses."""
    problem = Problem("0", prefix="the", start="the dog on a road", template=template)
    bound = Objective([Fluency(gpt2())]).bind([problem])
    tokens, vocabulary = PEZ().init(bound).tokens, gpt2().vocabulary
    (row,) = ids = gpt2().tokenizer.encode_batch(["the dog on a road"])
    padded, index = PaddedIds.from_lists(ids), torch.tensor([0])
    embeds = vocabulary[padded.ids].clone().requires_grad_()
    value = tokens.fluency(padded, index, embeds)
    (want,) = bound.evaluate(["the dog on a road"], [0])
    assert value.item() == pytest.approx(want.loss, abs=1e-5)
    (grad,) = torch.autograd.grad(value.sum(), embeds)
    # The first token is given: its choice costs nothing.
    for i in range(1, len(row)):
        before = torch.tensor([[*bound.around[0][0], *row[:i]]])
        nats = -gpt2().next_log_probs(before)[0]
        choice = torch.linalg.lstsq(vocabulary, (nats - nats.mean())[:, None]).solution[:, 0]
        grad[0, i] -= choice / len(row)
    step = torch.randn(embeds.shape, generator=torch.Generator().manual_seed(0)) * 1e-3
    with torch.no_grad():
        after, ago = (tokens.fluency(padded, index, embeds + s) for s in (step, -step))
    assert_close((grad * step).sum(), (after - ago).sum().float() / 2, rtol=0.02, atol=1e-6)


def test_steps_are_those_of_adamw() -> None:
    """With the gradient at the projections, at several learning rates and decays."""
    asked = problems(start="An image of a dog on a road")[:2]
    for lr, decay in ((0.1, 0.1), (0.02, 0.5)):
        search = replace(methods()["pez"], lr=lr, weight_decay=decay)
        state = search.init(objective().bind(asked))
        embeds = state.embeds.clone().requires_grad_()
        adamw = torch.optim.AdamW([embeds], lr=lr, weight_decay=decay)
        for _ in range(3):
            ids = state.tokens.project(state.embeds)
            embeds.grad = state.gradient(ids, [0, 1]) * (state.tokens.kinds >= 0)[..., None]
            adamw.step()
            state = search.step(state)
            assert_close(state.embeds, embeds.detach(), atol=1e-5, rtol=1e-5)


def test_what_is_not_searched_stays() -> None:
    """The prefix, the closing punctuation, and words that a search never writes."""
    asked = problems(start="An image of a caf\u00e9 on a road!")
    results = minimize(objective(), methods()["pez"], asked)
    texts = {entry.text for result in results for entry in result.history}
    assert len(texts) > 1
    for text in texts:
        assert text.startswith("An image of ")
        assert "\u00e9" in text
        assert text.endswith("!")
