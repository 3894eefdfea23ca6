"""A search finds the same texts with and without what it keeps of their beginnings."""

from functools import partial
from typing import Any

import pytest

from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.models import image_text
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.image_text import ClipModel
from fuseprompt.models.kv_cache import PrefixCache, TowerCache
from fuseprompt.objective import objective as objective_module
from fuseprompt.objective.continuation import Continuation
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.search.minimize import Result, minimize
from tests.methods.fixtures import method, objective, problems
from tests.tiny import clip, gpt2


def found() -> list[Result]:
    """Return the results of three problems searched together."""
    return minimize(objective(), method(steps=3), problems())


@pytest.mark.parametrize("room", [None, 0, 20_000])
def test_a_search_finds_the_same_without(monkeypatch: pytest.MonkeyPatch, room: int | None) -> None:
    with_caches = found()
    if room is None:
        monkeypatch.setattr(gpt2(), "can_continue", False)
        monkeypatch.setattr(ClipModel, "start_cache", lambda _: None)
    else:
        for module, kind in ((objective_module, PrefixCache), (image_text, TowerCache)):
            monkeypatch.setattr(module, kind.__name__, partial(kind, max_bytes=room))
    for got, want in zip(found(), with_caches, strict=True):
        assert got.text == want.text
        assert [a.text for a in got.alternatives] == [a.text for a in want.alternatives]
        assert got.terms == pytest.approx(want.terms, abs=1e-5)
        assert [h.text for h in got.history] == [h.text for h in want.history]
        losses = [h.loss for h in want.history]
        assert [h.loss for h in got.history] == pytest.approx(losses, abs=1e-5, rel=1e-5)


def test_a_search_finds_the_same_in_small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    want = found()
    for model in (gpt2(), clip()):
        monkeypatch.setattr(model.pass_size, "tokens", 9)
    monkeypatch.setattr("fuseprompt.models.kv_cache.TOKENS_PER_PASS", 9)
    assert [r.text for r in found()] == [r.text for r in want]


@pytest.mark.parametrize("template", ["{}", "the {} of the"])
def test_a_search_for_a_continuation_reads_a_text_once(
    monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    lm, passes, steps = gpt2(), [], 5
    target = [(template, " night"), ("{}", " city of the")]
    search = partial(
        minimize,
        Objective([Fluency(lm), Continuation(lm)]),
        AutoDAN(steps, beam_width=3, search_width=4, max_end_nats=-1.0),
        [Problem(str(i), {"continuation": target}, prefix) for i, prefix in enumerate(("", "a"))],
    )
    run = CausalLM._go_on

    def counted(self: CausalLM, ids: Any, *args: Any, **more: Any) -> Any:
        passes.append(ids.numel())
        return run(self, ids, *args, **more)

    # Whoever asks first has a model check itself in three passes, which are no search's.
    assert lm.can_pack
    monkeypatch.setattr(CausalLM, "_go_on", counted)
    got = search()
    # A step reads what was appended (to texts of two lengths), with and without a hint, then the
    # candidates; what a template has around a text it reads besides.
    assert len(passes) <= steps * (6 if template == "{}" else 7)
    monkeypatch.setattr(lm, "can_continue", False)
    monkeypatch.setitem(vars(lm), "can_pack", False)
    for one, other in zip(got, search(), strict=True):
        assert one.text == other.text
        assert one.terms == pytest.approx(other.terms, abs=1e-5)
        assert [h.text for h in one.history] == [h.text for h in other.history]
        losses = [h.loss for h in other.history]
        assert [h.loss for h in one.history] == pytest.approx(losses, abs=1e-5)
