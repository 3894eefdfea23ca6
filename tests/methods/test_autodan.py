"""AutoDAN: what is reported is true, groups do not matter, and every way to end is a good one."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fuseprompt.errors import SearchError
from fuseprompt.methods.autodan import AutoDAN, AutoDANState, has_waited
from fuseprompt.objective.objective import Evaluation, Objective
from fuseprompt.objective.problem import Forbid, Problem, Require
from fuseprompt.objective.terms import Fluency
from fuseprompt.proposals.gradient import Gradient
from fuseprompt.proposals.language_model import LanguageModelOnly
from fuseprompt.search.candidates import Proposer, keep_best
from fuseprompt.search.hypotheses import Candidates, Finished, Hypotheses
from fuseprompt.search.method import ACTIVE_MARGIN, HistoryEntry, Method
from fuseprompt.search.minimize import Result, Scored, iterate, minimize
from tests.methods.fixtures import PREFIX, method, objective, problems
from tests.tiny import MAX_LENGTH, gpt2


def run_to_the_end(search: AutoDAN, state: AutoDANState) -> AutoDANState:
    while not search.is_done(state):
        state = search.step(state)
    return state


def ended(result: Result) -> list[Scored]:
    """Return the texts of a result that end as sentences."""
    return [*([result] if result.finished else []), *result.alternatives]


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return minimize(objective(), method(), problems())


def test_texts_begin_with_the_prefix_and_end_as_sentences(results: list[Result]) -> None:
    assert any(ended(result) for result in results)
    for result in results:
        assert all(one.text[-1] in ".!?" for one in ended(result))
        assert result.finished == (result.text[-1] in ".!?")
        for one in (result, *result.alternatives):
            assert one.text.startswith(PREFIX + " ")
            assert gpt2().tokenizer.encode(one.text) == list(one.token_ids)
            assert "".join(one.tokens) == one.text


def test_the_reported_loss_is_that_of_the_text(results: list[Result]) -> None:
    bound = objective().bind(problems())
    for i, result in enumerate(results):
        for one in (result, *result.alternatives):
            (exact,) = bound.evaluate([one.text], [i])
            assert abs(one.loss - exact.loss) <= 1e-5 * max(1.0, abs(exact.loss))
            assert one.terms == pytest.approx(exact.terms, abs=1e-5, rel=1e-5)
            weighted = sum(objective().weights[n] * v for n, v in one.terms.items())
            assert abs(weighted - one.loss) <= 1e-5 * max(1.0, abs(one.loss))
        losses = [result.loss, *(a.loss for a in result.alternatives)]
        assert losses == sorted(losses)
        assert len({result.text, *(a.text for a in result.alternatives)}) == len(losses)


def test_one_problem_is_searched_like_many(results: list[Result]) -> None:
    for problem, together in zip(problems(), results, strict=True):
        (alone,) = minimize(objective(), method(), problem)
        assert alone.text == together.text
        assert abs(alone.loss - together.loss) <= 1e-5 * max(1.0, abs(alone.loss))
        assert [h.text for h in alone.history] == [h.text for h in together.history]
        assert [h.evaluations for h in alone.history] == [h.evaluations for h in together.history]


def test_the_same_seed_gives_the_same_result(results: list[Result]) -> None:
    again = minimize(objective(), method(), problems(), group_size=3)
    assert [r.text for r in again] == [r.text for r in results]
    assert [r.loss for r in again] == [r.loss for r in results]


def test_the_history_counts_steps_and_evaluations(results: list[Result]) -> None:
    for result in results:
        assert [h.step for h in result.history] == list(range(1, len(result.history) + 1))
        assert 1 <= len(result.history) <= 5
        assert result.history[0].evaluations == 8  # one beam
        assert all(8 <= h.evaluations <= 3 * 8 for h in result.history[1:])
        assert all(h.text.startswith(PREFIX) for h in result.history)
        pooled = [h.finished for h in result.history if h.finished is not None]
        assert pooled == sorted(pooled, reverse=True)
        assert result.loss <= min([*pooled, float("inf")]) + 1e-5


@pytest.mark.parametrize("template", ['A "{}"', "{}\n", "{}?"])
def test_a_template_that_goes_on_ends_a_text_without_a_full_stop(template: str) -> None:
    asked = [replace(problem, template=template) for problem in problems()]
    bound = objective().bind(asked)
    for i, result in enumerate(minimize(objective(), method(), asked)):
        assert result.finished
        for one in (result, *result.alternatives):
            assert one.text[-1] not in ".!?"
            (exact,) = bound.evaluate([one.text], [i])
            assert abs(one.loss - exact.loss) <= 1e-5 * max(1.0, abs(exact.loss))
    dear = minimize(objective(), method(max_end_nats=0.01), asked)
    assert not any(result.finished or result.alternatives for result in dear)


def test_texts_with_and_without_a_template_are_searched_together() -> None:
    plain, *others = problems()
    mixed = [plain, *(replace(problem, template="{}\n") for problem in others)]
    for together, problem in zip(minimize(objective(), method(), mixed), mixed, strict=True):
        (alone,) = minimize(objective(), method(), problem)
        assert (together.text, together.finished) == (alone.text, alone.finished)
        assert together.loss == pytest.approx(alone.loss, rel=1e-5)


@pytest.mark.parametrize("prefix", [PREFIX, ""])
def test_the_loss_of_an_active_is_exact_too(prefix: str) -> None:
    bound = objective().bind([Problem(p.id, p.targets, prefix) for p in problems()])
    search = method(max_end_nats=-1.0)
    state = search.step(search.step(search.init(bound)))
    active = state.active
    assert len(active) == 9
    exact = bound.evaluate(active.texts, active.problems.tolist())
    # Without the end event, fluency is the mean over the chosen tokens alone.
    without_end = [
        e.loss - e.terms["fluency"] + float(s / n)
        for e, s, n in zip(exact, active.nll_sum, active.num_chosen, strict=True)
    ]
    torch.testing.assert_close(
        active.losses, torch.tensor(without_end, dtype=torch.float32), atol=1e-4, rtol=1e-5
    )


@pytest.mark.parametrize("limit", [1.0, 4.0, 50.0])
def test_an_active_is_the_result_only_where_its_exact_loss_is_lower(
    limit: float,
) -> None:
    search = method(max_end_nats=limit)
    state = search.init(objective().bind(problems()))
    while not search.is_done(state):
        state = search.step(state)
    for outcome, result in zip(
        search.finish(state), minimize(objective(), search, problems()), strict=True
    ):
        index = [[p.id for p in problems()].index(result.problem.id)] * len(outcome.texts)
        losses = {
            text: exact.loss
            for text, exact in zip(
                outcome.texts, state.bound.evaluate(outcome.texts, index), strict=True
            )
        }
        best = min(outcome.finished or outcome.active, key=losses.__getitem__)
        for active in outcome.active:
            best = active if losses[active] < losses[best] - ACTIVE_MARGIN else best
        assert result.text == best
        assert result.finished == (result.text in outcome.finished)
        assert all(one.text in outcome.finished for one in result.alternatives)


def test_an_active_that_misses_a_word_is_no_rival_of_a_finished_one() -> None:
    search, rules = method(steps=8), (Require(("dog",)),)
    state = search.init(objective(*rules).bind(problems()))
    while not search.is_done(state):
        state = search.step(state)
    assert any(outcome.finished for outcome in search.finish(state))
    for outcome in search.finish(state):
        for active in outcome.active if outcome.finished else ():
            assert Require(("dog",)).missing(active, problems()[0]) == 0


@pytest.mark.parametrize("steps", [1, 2, 3, 12])
def test_no_text_has_more_tokens_than_steps(steps: int) -> None:
    given = len(gpt2().tokenizer.encode(PREFIX))
    found = minimize(objective(), method(steps=steps, max_end_nats=100.0), problems())
    texts = [one for result in found for one in (result, *result.alternatives)]
    lengths = [len(one.token_ids) - given for one in texts]
    assert max(lengths) <= steps
    assert all(len(result.history) <= steps for result in found)
    # All of the steps may be used, by a text that ends as a sentence too.
    closed = [n for one, n in zip(texts, lengths, strict=True) if one.text[-1] in ".!?"]
    assert max(closed, default=1) == min(steps, max(lengths))


def test_without_a_likely_end_the_best_active_is_returned_unfinished() -> None:
    result = minimize(objective(), method(max_end_nats=-1.0), problems())[0]
    assert not result.finished
    assert result.alternatives == ()
    assert len(result.history) == 5
    assert result.text == result.history[-1].text


def test_closing_punctuation_costs_at_most_max_end_nats() -> None:
    limit = 6.0
    found = minimize(objective(), method(max_end_nats=limit, steps=8), problems())
    texts = [one.text for r in found for one in ended(r)]
    assert texts
    given = len(gpt2().tokenizer.encode(PREFIX))
    for text in texts:
        (nll,) = gpt2().nll([gpt2().tokenizer.encode(text)], [given])
        assert float(nll[-2]) <= limit + 1e-4


@pytest.mark.parametrize(
    ("pooled", "waited"),
    [
        ([1.0, 1.0, 1.0], True),
        ([3.0, 1.0, 1.0], True),
        ([1.0, 3.0, 1.0], False),
        ([1.0, 1.0, 3.0], False),
        ([None, None, 1.0], False),
        ([1.0], False),
    ],
)
def test_a_problem_waits_until_its_finished_text_was_the_better_one_twice(
    pooled: list[float | None], waited: bool
) -> None:
    history = tuple(HistoryEntry(i, "", 2.0, p, 8) for i, p in enumerate(pooled))
    assert has_waited(history, AutoDAN().patience) == waited
    assert not has_waited(history, 4)


@pytest.mark.parametrize("ending_nats", [2.0, 5.0])
def test_a_problem_is_done_only_below_the_price_of_a_good_ending(ending_nats: float) -> None:
    """An active text counts as if it ended here for `ending_nats` over two more events."""
    search = replace(method(max_end_nats=-1.0), ending_nats=ending_nats)
    state = search.step(search.step(search.init(objective().bind(problems()[:1]))))
    margin, active, weight = 1e-3, state.active, objective().fluency.weight
    means = [
        (float(s / n), float((s + ending_nats) / (n + 2)))
        for s, n in zip(active.nll_sum, active.num_chosen, strict=True)
    ]
    best = min(
        float(loss) + weight * (min(mean, ended) - mean)
        for loss, (mean, ended) in zip(active.losses, means, strict=True)
    )
    waited = tuple(HistoryEntry(i, "", best + 1.0, best - margin, 1) for i in range(3))

    def growing(finished: float) -> list[int]:
        one = Finished(finished, "A text.", Evaluation(finished, {}))
        return search._growing_rows(replace(state, finished=((one,),), histories=(waited,)))

    assert growing(best - margin) == []
    assert growing(best + margin) == list(range(len(active)))
    impatient = replace(state, finished=((Finished(best - margin, "A.", Evaluation(0.0, {})),),))
    assert search._growing_rows(impatient) == list(range(len(active)))  # It has not waited.


def test_a_text_that_is_read_otherwise_makes_room_for_the_next() -> None:
    tokenizer = gpt2().tokenizer
    search = method(max_end_nats=-1.0)
    active = search.init(objective().bind([Problem("0", problems()[0].targets, "a t")])).active
    # " the" is one token, so " t" followed by "he" is no way to write it.
    tokens = [tokenizer.encode(text)[-1] for text in ("he", "a cat", "a dog", "a the")]
    texts = tuple(active.texts[0] + tokenizer.token_texts[token] for token in tokens)
    assert [
        tokenizer.encode(t) == [*tokenizer.encode("a t"), i]
        for t, i in zip(texts, tokens, strict=True)
    ] == [False, True, True, True]
    losses = torch.tensor([0.0, 3.0, 1.0, float("inf")])
    candidates = Candidates(
        torch.zeros(4, dtype=torch.long), torch.tensor(tokens), losses, losses, texts
    )
    for width, want in ((1, [2]), (2, [2, 1]), (4, [2, 1])):
        assert keep_best(active, candidates, losses, width, tokenizer).tolist() == want


def test_a_time_limit_returns_the_best_so_far() -> None:
    (result,) = minimize(objective(), method(steps=12), problems()[0], time_limit=1e-9)
    assert len(result.history) == 1
    assert not result.finished
    assert result.text == result.history[0].text


def test_a_state_can_be_stepped_twice() -> None:
    search = method()
    state = search.step(search.init(objective().bind(problems())))
    before = (state.active.texts, state.finished, state.histories, state.active.nll_sum.clone())
    first, second = search.step(state), search.step(state)
    assert first.active.texts == second.active.texts
    assert (state.active.texts, state.finished, state.histories) == before[:3]
    assert torch.equal(state.active.nll_sum, before[3])


def test_inputs_are_unchanged() -> None:
    given = problems()
    pixels = [p.targets["image"].tobytes() for p in given]
    search = method()
    list(iterate(objective(), search, given))
    assert [p.targets["image"].tobytes() for p in given] == pixels
    assert search == method()


def test_forbidden_words_are_in_no_text_of_the_search(results: list[Result]) -> None:
    word = results[0].text.split()[3].strip(".!?")
    search, rules = method(), (Forbid((word,)),)
    (result,) = minimize(objective(*rules), search, problems()[0])
    for text in (result.text, *(h.text for h in result.history)):
        assert word not in text.replace(".", " ").split()


def test_a_prefix_that_no_text_may_begin_with_is_refused() -> None:
    with pytest.raises(SearchError, match=r"'An image of' has a forbidden word.*another prefix"):
        minimize(objective(Forbid(("dog", "Image"))), method(), problems())


def test_what_is_required_never_brings_in_what_is_forbidden() -> None:
    search, rules = method(), (Require(("big dog",)), Forbid(("big",)))
    state = run_to_the_end(search, search.init(objective(*rules).bind(problems())))
    texts = [text for _, _, text in state.unfinished()]
    assert texts
    assert all(Forbid(("big",)).allows(text, problems()[0]) for text in texts)


def test_required_words_are_in_every_finished_text() -> None:
    search, rules = method(steps=8), (Require(("dog", "beach")),)
    for result in minimize(objective(*rules), search, problems()):
        assert ended(result)
        for one in (result, *result.alternatives):
            assert Require(("dog", "beach")).missing(one.text, result.problem) == 0


def test_what_is_required_and_forbidden_is_never_finished() -> None:
    search, rules = method(), (Require(("dog",)), Forbid(("dog",)))
    (result,) = minimize(objective(*rules), search, problems()[0])
    assert not result.finished
    assert "dog" not in result.text.split()


@pytest.mark.parametrize("stuck", [{1}, {0, 1, 2}])
def test_an_exhausted_vocabulary_keeps_what_there_is(
    stuck: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    propose = Proposer.propose

    def nothing_after(self: Proposer, active: Hypotheses, *args: Any, **more: Any) -> Candidates:
        """Propose nothing for some problems once they have begun."""
        every = propose(self, active, *args, **more)
        begun = active.num_chosen[every.rows] > 0
        held = torch.tensor([p in stuck for p in active.problems[every.rows].tolist()])
        keep = torch.nonzero(~(begun & held)).flatten()
        texts = tuple(every.texts[i] for i in keep.tolist())
        return Candidates(
            every.rows[keep], every.tokens[keep], every.nll[keep], every.predicted[keep], texts
        )

    monkeypatch.setattr(Proposer, "propose", nothing_after)
    search = replace(method(steps=3, max_end_nats=-1.0), proposal=LanguageModelOnly())
    found = minimize(objective(), search, problems())
    lengths = [len(r.token_ids) - len(gpt2().tokenizer.encode(PREFIX)) for r in found]
    assert lengths == [1 if i in stuck else 3 for i in range(3)]


def test_texts_stop_at_the_end_of_a_models_room() -> None:
    prefix = " ".join(["a"] * (MAX_LENGTH - 8))
    tight = [Problem("0", problems()[0].targets, prefix)]
    result = minimize(objective(), method(steps=30, max_end_nats=-1.0), tight)[0]
    models = (gpt2(), *(t.model for t in objective().terms))
    lengths = [
        len(m.tokenizer.add_special_tokens(m.tokenizer.encode(result.text))) - m.max_length
        for m in models
    ]
    assert max(lengths) <= 0
    assert max(lengths) > -6
    with pytest.raises(SearchError, match=r"has \d+ tokens for .*at most 64.*Shorten"):
        minimize(objective(), method(), [Problem("0", tight[0].targets, "a" + " a" * MAX_LENGTH)])


@pytest.mark.parametrize("prefix", ["An image of ", "An image\n"])
def test_a_prefix_that_cannot_be_kept_is_refused(prefix: str) -> None:
    problem = Problem("0", problems()[0].targets, prefix)
    with pytest.raises(SearchError, match="Choose another prefix"):
        minimize(objective(), method(), problem)


def test_a_control_token_of_any_model_in_a_prefix_is_refused() -> None:
    for model in (gpt2(), *(t.model for t in objective().terms)):
        prefix = f"An image {model.tokenizer.special_texts[0]} of"
        problem = Problem("0", problems()[0].targets, prefix)
        with pytest.raises(SearchError, match="Choose another prefix"):
            minimize(objective(), method(), problem)


def test_no_prefix_is_a_prefix_too() -> None:
    (result,) = minimize(objective(), method(), Problem("0", problems()[0].targets, ""))
    assert ended(result)
    assert result.text == result.text.strip()
    (exact,) = objective().bind([Problem("0", problems()[0].targets)]).evaluate([result.text], [0])
    assert abs(result.loss - exact.loss) <= 1e-5 * max(1.0, exact.loss)


def test_fluency_alone_is_an_objective() -> None:
    (result,) = minimize(Objective([Fluency(gpt2())]), method(), prefix=PREFIX)
    assert result.fast_path == 1.0
    assert abs(result.loss - result.terms["fluency"]) < 1e-6


def test_counts_are_checked() -> None:
    with pytest.raises(ValueError, match="steps must be at least 1, was: 0"):
        AutoDAN(steps=0)
    with pytest.raises(ValueError, match="beam_width must be at least 1, was: 0"):
        AutoDAN(beam_width=0)
    with pytest.raises(ValueError, match="search_width must be at least 1, was: -2"):
        AutoDAN(search_width=-2)


def test_it_keeps_the_protocol_of_methods() -> None:
    assert isinstance(AutoDAN(), Method)


def test_what_a_proposal_keeps_is_made_once_for_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    init = Gradient.init

    def counted(self: Gradient, *args: Any) -> Any:
        made.append(self)
        return init(self, *args)

    monkeypatch.setattr(Gradient, "init", counted)
    goal = objective()
    minimize(goal, method(steps=1), problems(), group_size=1)
    assert len(made) == len(goal.terms)
    minimize(goal, method(steps=1), problems()[0])  # another method of equal settings
    assert len(made) == len(goal.terms)
    minimize(goal, replace(method(steps=1), proposal=Gradient(2)), problems()[0])
    assert len(made) == 2 * len(goal.terms)
