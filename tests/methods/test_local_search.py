"""Local search: no start gets worse, the best edit is taken, rules hold, groups do not matter."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fuseprompt.methods.local_search import LocalSearch
from fuseprompt.objective.objective import Evaluation, Objective
from fuseprompt.objective.problem import Constraint, Forbid, MaxChanged, MaxWords, Problem, Require
from fuseprompt.objective.terms import Fluency, Label, TextSimilarity
from fuseprompt.proposals.language_model import LanguageModelOnly, RandomNoise
from fuseprompt.search.beginnings import begin_whole
from fuseprompt.search.edited import Edited, EditedProblem, EditState
from fuseprompt.search.method import Method
from fuseprompt.search.minimize import Progress, Result, minimize
from fuseprompt.search.places import Candidates
from tests.methods.fixtures import PREFIX, method, objective, problems
from tests.tiny import classifier, gpt2, llama, sentence_encoder

STARTS = ("An image of a happy dog.", "An image of the old museum at night", "An image of people!")


def search(steps: int = 5, **settings: int) -> LocalSearch:
    small = {"per_place": 2, "search_width": 16, "num_exact": 5, **settings}
    return LocalSearch(steps, RandomNoise(scale=0.3), **small)


def started() -> list[Problem]:
    pairs = zip(problems(), STARTS, strict=True)
    return [Problem(p.id, p.targets, p.prefix, start) for p, start in pairs]


def states(method: LocalSearch, objective: Objective, problems: Sequence[Problem]):
    state = method.init(objective.bind(problems))
    yield state
    while not method.is_done(state):
        state = method.step(state)
        yield state


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return minimize(objective(), search(), started())


def test_no_start_gets_worse_and_losses_are_those_of_the_texts(results: list[Result]) -> None:
    bound = objective().bind(started())
    before = bound.evaluate(STARTS, range(3))
    for i, (result, start) in enumerate(zip(results, before, strict=True)):
        assert result.loss < start.loss
        assert result.text.startswith(PREFIX)
        for one in (result, *result.alternatives):
            (exact,) = bound.evaluate([one.text], [i])
            assert one.loss == pytest.approx(exact.loss, abs=1e-5)
            assert gpt2().tokenizer.encode(one.text) == list(one.token_ids)


@pytest.mark.parametrize("start", ["An image of a dog", "An image of a dog.", "An image of the"])
def test_a_margin_for_finished_texts_makes_no_result_worse_than_its_start(start: str) -> None:
    terms = [Fluency(gpt2(), weight=0.05), Label(classifier(), weight=0.01)]
    problem = Problem("0", {"sentiment": "positive"}, PREFIX, start)
    bound = Objective(terms).bind([problem])
    (before,) = bound.evaluate([start], [0])
    (result,) = minimize(Objective(terms), search(4), problem)
    assert result.loss <= before.loss + 1e-5


def test_texts_that_do_not_end_as_sentences_are_found_too() -> None:
    losses = {"An image of a": 1.0, "An image of the": 1.5, "An image of a.": 2.0, "An image!": 4.0}
    best = tuple(Edited(text, Evaluation(loss, {})) for text, loss in losses.items())
    state = search().init(objective().bind(started()[:1]))
    # No result is worse than a start that does not end as a sentence.
    for begun, ended in ((best[3], ("An image of a.", "An image!")), (best[1], ())):
        problem = replace(state.problems[0], begun=begun, best=best)
        (found,) = replace(state, problems=(problem,)).found()
        assert found.active == ("An image of a", "An image of the")
        assert found.finished == ended


def test_every_text_is_finished_where_a_template_goes_on() -> None:
    asked = [replace(problem, template="{}\n") for problem in problems()]
    for result in minimize(objective(), LocalSearch(steps=3), asked):
        assert result.finished
        losses = [one.loss for one in (result, *result.alternatives)]
        assert losses == sorted(losses)


def test_one_problem_is_searched_like_many(results: list[Result]) -> None:
    for problem, together in zip(started(), results, strict=True):
        (alone,) = minimize(objective(), search(), problem)
        assert alone.text == together.text
        assert [a.text for a in alone.alternatives] == [a.text for a in together.alternatives]
        assert [h.text for h in alone.history] == [h.text for h in together.history]
        assert [h.evaluations for h in alone.history] == [h.evaluations for h in together.history]


def test_the_same_seed_gives_the_same_and_a_restart_needs_it() -> None:
    settings = search(9, patience=2, restarts=2)
    first, again = (minimize(objective(), settings, started(), seed=5) for _ in range(2))
    assert [(r.text, r.loss, r.history) for r in first] == [
        (r.text, r.loss, r.history) for r in again
    ]
    assert [r.history for r in minimize(objective(), settings, started(), seed=6)] != [
        r.history for r in first
    ]


def test_draws_do_not_depend_on_other_problems() -> None:
    together = search().init(objective().bind(started()))
    alone = search().init(objective().bind(started()[1:2]))
    assert together.seeds([0, 1])[1:] == together.seeds([1]) == alone.seeds([0])
    assert len({*together.seeds([0, 1, 2]), *replace(together, num_steps=1).seeds([0, 1, 2])}) == 6


def test_finished_texts_that_are_worse_than_the_start_are_not_found() -> None:
    state = search().init(objective().bind(started()[1:2]))
    start = Edited("An image of a dog", Evaluation(1.0, {}))
    worse = Edited("An image of a dog.", Evaluation(1.5, {}))
    better = Edited("An image of a cat.", Evaluation(0.5, {}))
    problem = EditedProblem(start, start, (start, worse))
    (found,) = replace(state, problems=(problem,)).found()
    assert found.texts == (start.text,)
    (found,) = replace(state, problems=(replace(problem, best=(better, start, worse)),)).found()
    assert (found.finished, found.active) == ((better.text,), (start.text,))


def test_a_later_method_begins_elsewhere_but_keeps_the_start_of_the_problem() -> None:
    bound = objective(MaxChanged(0.2)).bind(started()[:1])
    later = bound.starting_from(["An image of a sad dog."])
    assert begin_whole(later, 1) == ("An image of a sad dog.",)
    assert bound.allows("An image of a sad dog.", 0)
    assert later.allows("An image of a happy cat.", 0)  # one word from the problem's own start
    assert not later.allows("An image of a sad cat.", 0)  # two words


def test_the_history_is_that_of_the_best_text(results: list[Result]) -> None:
    for result in results:
        assert [h.step for h in result.history] == list(range(1, len(result.history) + 1))
        losses = [h.loss for h in result.history]
        assert losses == sorted(losses, reverse=True)
        assert all(0 < h.evaluations <= 5 for h in result.history)
        assert result.loss == pytest.approx(losses[-1], abs=1e-5) or result.finished


def test_each_step_takes_the_best_of_all_edits() -> None:
    whole = LocalSearch(3, LanguageModelOnly(), 12, search_width=10_000, num_exact=10_000)
    bound = objective().bind(started())
    state = whole.init(bound)
    for _ in range(3):
        before = [p.current for p in state.problems]
        edits = state.editor.read([one.text for one in before], [0, 1, 2])
        every = Candidates.join(edits.best(12), edits.removals())
        exact = bound.evaluate(every.texts, every.rows.tolist())
        state = whole.step(state)
        for i, problem in enumerate(state.problems):
            losses = [e.loss for e, row in zip(exact, every.rows.tolist(), strict=True) if row == i]
            if min(losses) < before[i].exact.loss - 1e-4:
                assert problem.current.exact.loss == pytest.approx(min(losses), abs=1e-4)
            else:  # The next ones of the same text are tried first.
                assert problem.current == before[i]
                assert problem.scored[0].exact.loss == pytest.approx(min(losses), abs=1e-4)


def test_it_goes_on_from_a_worse_text_and_never_to_one_where_it_was() -> None:
    settings = search(12, patience=6)
    (*_, last) = states(settings, objective(), started())
    for problem in last.problems:
        assert len(set(problem.visited)) == len(problem.visited) > 3
    went_up = [p for p in last.problems if p.best[0].is_better(p.current)]
    assert went_up


def test_patience_ends_a_problem_and_steps_end_the_search() -> None:
    settings = search(30, patience=2)
    seen = list(states(settings, objective(), started()))
    last = seen[-1]
    assert last.num_steps == len(seen) - 1 < 30
    for problem in last.problems:
        assert problem.waited == 2
        losses = [h.loss for h in problem.history]
        assert losses[-3] == losses[-1] < losses[0] or len(losses) < 4
    assert search(3).is_done(seen[3])
    assert not search(4).is_done(seen[3])


def test_a_restart_edits_the_best_text_at_random() -> None:
    settings = search(30, patience=2, restarts=3)
    before: EditState | None = None
    restarted = 0
    for state in states(settings, objective(), started()):
        for i, problem in enumerate(state.problems):
            assert problem.restarts <= 3
            if before is None or problem.restarts == before.problems[i].restarts:
                continue
            restarted += 1
            assert problem.waited == 0
            old = before.problems[i].best[0].text.split()
            new = problem.current.text.split()
            assert len(old) == len(new)
            assert sum(a != b for a, b in zip(old, new, strict=True)) == 1
        before = state
    assert restarted == 9
    assert before is not None
    assert settings.is_done(before)


@pytest.mark.parametrize(
    "start", ["a the dog un", "a the un", "a the of the un", "a the ofed un"], ids=str
)
def test_a_planted_optimum_is_found(start: str) -> None:
    target = "a the of un"
    terms = [Fluency(gpt2(), weight=0.0), TextSimilarity(sentence_encoder())]
    settings = LocalSearch(2, LanguageModelOnly(), 420, search_width=10_000, num_exact=4)
    problem = Problem("0", {"text": target}, "a", start)
    (result,) = minimize(Objective(terms), settings, problem)
    assert result.text == target
    assert result.loss < 1e-5


@pytest.mark.parametrize(
    "rules",
    [
        (Forbid(("the", "a", "dog", "happy")),),
        (Require(("museum", "boat")), MaxWords(4)),
        (MaxWords(3),),
        (MaxChanged(0.34),),
        (Forbid(("a",)), Require(("dog",)), MaxWords(5)),
    ],
    ids=str,
)
def test_what_is_asked_for_holds(rules: tuple[Constraint, ...]) -> None:
    found = minimize(objective(*rules), search(10), started())
    for result in found:
        for text in (result.text, *(a.text for a in result.alternatives)):
            if result.violation == 0:
                assert all(rule.allows(result.text, result.problem) for rule in rules)
                assert all(not rule.missing(result.text, result.problem) for rule in rules)
            assert text.startswith(PREFIX)
        assert result.violation == 0
        assert result.loss == pytest.approx(
            sum(objective().weights[n] * v for n, v in result.terms.items()), abs=1e-5
        )


def test_a_bound_decides_before_the_loss() -> None:
    free = minimize(objective(), search(10), started())
    most = 0.8 * max(r.terms["sentiment"] for r in free)
    terms = [Fluency(gpt2()), *objective().terms]
    bounded = Objective(terms, bounds={"sentiment": most})
    scored: dict[str, list[float]] = {p.id: [] for p in started()}
    for state in states(search(10), bounded, started()):
        for problem, own in zip(started(), state.problems, strict=True):
            every = (*own.scored, own.current, *own.best)
            scored[problem.id] += [one.exact.violation for one in every]
    for result in minimize(bounded, search(10), started()):
        over = max(0.0, result.terms["sentiment"] - most)
        assert result.violation == pytest.approx(over, abs=1e-5)
        assert result.violation == pytest.approx(min(scored[result.problem.id]), abs=1e-5)
    assert any(0.0 in violations for violations in scored.values())


def test_what_cannot_be_met_is_reported() -> None:
    rules = Require(("museum",)), Forbid(("museum",))
    for result in minimize(objective(*rules), search(3), started()):
        assert result.violation > 0.2


def test_after_autodan_no_result_is_worse() -> None:
    for end in (1.0, 30.0):
        first = method(steps=4, max_end_nats=end)
        before = minimize(objective(), first, problems())
        after = minimize(objective(), [first, search(4)], problems())
        for one, both in zip(before, after, strict=True):
            assert both.loss <= one.loss + 1e-5
            steps = [h.step for h in both.history]
            assert steps == list(range(1, len(steps) + 1))
            assert both.history[: len(one.history)] == one.history
        assert any(both.loss < one.loss for one, both in zip(before, after, strict=True))


def test_changes_are_counted_from_the_start_of_the_problem_in_a_chain_too() -> None:
    rule = MaxChanged(0.3)
    settings: list[Method] = [search(6), search(6), search(6)]
    for result in minimize(objective(rule), settings, started()):
        assert result.violation == 0
        assert rule.allows(result.text, result.problem)


@pytest.mark.parametrize("primary", [gpt2, llama], ids=["gpt2", "llama"])
@pytest.mark.parametrize("template", ["{}", "the museum: {} at night"])
def test_without_a_start_a_text_is_drawn_with_the_seed_of_its_problem(primary, template) -> None:
    terms = [Fluency(primary()), Label(classifier())]
    own = [
        Problem(str(i), {"sentiment": "positive"}, prefix, template=template)
        for i, prefix in enumerate(["", "", PREFIX])
    ]
    found = minimize(Objective(terms), search(2, num_tokens=4), own)
    (second,) = minimize(Objective(terms), search(2, num_tokens=4), own[1])
    assert second.text == found[1].text
    assert found[0].text[0].isalnum()
    (state, *_) = states(search(num_tokens=4), Objective(terms), own)
    texts = [p.current.text for p in state.problems]
    assert len(set(texts)) == 3
    assert all(len(t.removeprefix(PREFIX).split()) == 4 and t.endswith(".") for t in texts)
    assert texts[2].startswith(PREFIX)


def test_an_empty_start_is_none() -> None:
    problem = Problem("0", {"sentiment": "positive"}, start="")
    terms = [Fluency(gpt2()), Label(classifier())]
    (result,) = minimize(Objective(terms), search(2), problem)
    assert len(result.text.split()) > 2


def test_counts_are_checked() -> None:
    with pytest.raises(ValueError, match="patience must be at least 1, was: 0"):
        LocalSearch(patience=0)


def test_a_callback_sees_every_term_and_stops_the_search() -> None:
    seen: list[Progress] = []

    def watch(progress: Progress) -> bool:
        seen.append(progress)
        return len(seen) == 2

    chain: list[Method] = [search(5), search(5)]
    found = minimize(objective(), chain, started(), on_step=watch)
    assert [p.step for p in seen] == [1, 2]
    assert seen[0].steps == 10
    exact = objective().bind(started()).evaluate(seen[1].texts, range(3))
    for got, want, result in zip(seen[1].evaluations, exact, found, strict=True):
        assert set(got.terms) == {"fluency", "image", "sentiment"}
        assert got.loss == pytest.approx(want.loss, abs=1e-5)
        assert len(result.history) == 2
    assert seen[1].ids == ("red", "blue", "green")


def test_steps_are_counted_through_a_chain() -> None:
    seen: list[int] = []
    chain: list[Method] = [search(3), method(steps=2), search(2)]
    minimize(objective(), chain, started(), on_step=lambda p: seen.append(p.step))
    assert seen == sorted(seen)
    assert seen[:3] == [1, 2, 3]
    assert seen[-1] <= 7


def test_a_start_serves_autodan_too() -> None:
    (result,) = minimize(objective(), method(steps=2), started()[0])
    assert result.text.startswith("An image of a happy dog")
