"""Edits: what places there are, what is expected of a token there, and that scores are exact."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuseprompt.objective.continuation import Continuation
from fuseprompt.objective.objective import BoundObjective, Objective
from fuseprompt.objective.problem import Constraint, Forbid, MaxWords, Problem, Require
from fuseprompt.objective.terms import Fluency, Label, TextSimilarity
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.language_model import LanguageModelOnly, RandomNoise
from fuseprompt.proposals.word_table import WordTable
from fuseprompt.search.edits import Editor, Edits
from fuseprompt.search.places import INSERT, LENGTHEN, REPLACE, RESPELL, Candidates
from tests.tiny import MAX_LENGTH, classifier, gpt2, llama, sentence_encoder

TARGETS = {"text": "a happy dog", "after-gpt2": " the sea", "after-llama": " a boat"}
PREFIXES = ("", "An image of", "two peo")
TEMPLATES = ("{}", "the museum's {}", "{} in the park", "a photo: {} at night")
WORDS = ("a", "happy", "dog,", "extraordinary", "U.S.", "(and", '"reading")', "isn't", "1987", "x")

both = pytest.mark.parametrize("primary", [gpt2, llama], ids=["gpt2", "llama"])


def terms(primary: Any, weight: float = 1.0) -> list[Any]:
    """Return fluency and secondaries like GPT-2, Llama (with BOS) and BERT (lower case)."""
    return [
        Fluency(primary(), weight=weight),
        TextSimilarity(sentence_encoder(), weight=3.0, target="text"),
        Continuation(gpt2(), weight=0.5, name="one", target="after-gpt2"),
        Continuation(llama(), weight=0.5, name="two", target="after-llama"),
    ]


def read(
    primary: Any,
    texts: Sequence[str],
    prefix: str = "",
    template: str = "{}",
    *constraints: Constraint,
) -> Edits:
    problem = Problem("0", TARGETS, prefix, template=template)
    bound = Objective(terms(primary), constraints=constraints).bind([problem])
    return Editor.start(bound, LanguageModelOnly()).read(texts, [0] * len(texts))


def every(edits: Edits, tokens: Sequence[int]) -> Candidates:
    """Return the candidates of some tokens at every place, whatever is expected of them."""
    places = torch.arange(len(edits.places)).repeat_interleave(len(tokens))
    return edits.take(places, torch.tensor([*tokens] * len(edits.places)))


def assert_scored_as_texts(edits: Edits, candidates: Candidates) -> None:
    scored = edits.score(candidates, len(candidates))
    assert sorted((row, text) for row, text, _ in scored) == sorted(candidates.pairs)
    problems = [edits.problems[row] for row, _, _ in scored]
    exact = edits.bound.evaluate([text for _, text, _ in scored], problems)
    for (_, text, got), want in zip(scored, exact, strict=True):
        assert got.terms == pytest.approx(want.terms, abs=1e-5, rel=1e-5), text
        assert got.loss == pytest.approx(want.loss, abs=1e-5, rel=1e-5)
        assert got.violation == pytest.approx(want.violation, abs=1e-5)


@both
@settings(max_examples=12)
@given(
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5),
    pieces=st.lists(st.integers(0, 419), max_size=3),
    end=st.sampled_from(["", ".", "!?"]),
    prefix=st.sampled_from(PREFIXES),
    template=st.sampled_from(TEMPLATES),
    tokens=st.lists(st.integers(0, 419), min_size=1, max_size=3, unique=True),
)
def test_what_is_scored_is_the_whole_text(
    primary: Any,
    words: list[str],
    pieces: list[int],
    end: str,
    prefix: str,
    template: str,
    tokens: list[int],
) -> None:
    tokenizer = primary().tokenizer
    odd = "".join(t for t in (tokenizer.token_texts[i] for i in pieces) if t.isprintable())
    text = prefix + (" " if prefix else "") + " ".join(words) + odd + end
    assume(tokenizer.decode(tokenizer.encode(text)) == text and "\ufffd" not in text)
    edits = read(primary, [text], prefix, template)
    ids = tokenizer.encode(text)
    for place in edits.places:
        assert place.left.startswith(prefix)
        assert text.startswith(place.left)
        assert text.endswith(place.right)
        assert tokenizer.decode(ids[: place.index]) == place.left
        assert tokenizer.decode(ids[place.index + place.removed :]) == place.right
    initial = edits.editor.proposer.classes.initial_ids[:: 40 + tokens[0]].tolist()
    candidates = every(edits, [*tokens, *initial])
    removals = edits.removals()
    for each in (candidates, removals):
        assert all(t.startswith(prefix) and t != text for t in each.texts)
        assert all(tokenizer.decode(tokenizer.encode(t)) == t for t in each.texts)
    assert_scored_as_texts(edits, Candidates.join(candidates, removals))


def test_the_comparison_itself_notices_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    edits = read(gpt2, ["An image of a happy dog."], "An image of")
    candidates = edits.best(4)
    plain = Edits._exact_fluency
    monkeypatch.setattr(Edits, "_exact_fluency", lambda s, c: [v + 1e-3 for v in plain(s, c)])
    with pytest.raises(AssertionError):
        assert_scored_as_texts(edits, candidates)


@both
def test_every_place_of_a_text_is_known(primary: Any) -> None:
    edits = read(primary, ["An image of a happy dog, extraordinary."], "An image of")
    found = {kind: [] for kind in range(4)}
    for place in edits.places:
        found[place.kind].append((place.left.removeprefix("An image of"), place.right))
    assert found[REPLACE] == [
        ("", " happy dog, extraordinary."),
        (" a", " dog, extraordinary."),
        (" a happy", ", extraordinary."),
        (" a happy dog,", "."),
    ]
    before = ["", " a", " a happy", " a happy dog,"]
    whole = " a happy dog, extraordinary."
    ends = [" a happy dog, extraordinary"]
    assert found[INSERT] == [(left, whole[len(left) :]) for left in [*before, *ends]]
    lasts = [" a", " a happy", " a happy dog", " a happy dog, extraordinary"]
    assert found[LENGTHEN] == [(left, whole[len(left) :]) for left in lasts]
    words = {left.split()[-1] for left, _ in found[RESPELL]}
    assert words <= {"a", "happ", "dog,", "extraordinar", "d", "do", "extraordin", "extraord"}
    assert all(right in (" dog, extraordinary.", ".", ", extraordinary.") for _, right in found[3])


def test_a_prefix_that_ends_inside_a_word_is_kept() -> None:
    edits = read(gpt2, ["two people are walking"], "two peo")
    candidates = Candidates.join(edits.best(420), edits.removals())
    assert all(text.startswith("two peo") for text in candidates.texts)
    assert {p.left for p in edits.places} >= {"two people", "two people are"}


@both
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("prefix", ["", "An image of"])
def test_expected_fluency_counts_what_stays_as_before(
    primary: Any, template: str, prefix: str
) -> None:
    text = f"{prefix} a happy extraordinary dog, running.".strip()
    edits = read(primary, [text], prefix, template)
    lm, tokenizer = primary(), primary().tokenizer
    left, right = (tokenizer.encode(part) for part in template.split("{}"))
    ids = tokenizer.encode(text)
    given = len(tokenizer.encode(prefix))
    if not (given or left or lm.begin_ids):
        given = 1  # Nothing predicts the first token.
    (nll,) = lm.nll([[*left, *ids]], [len(left)])
    nats = [0.0, *nll.tolist()] if len(nll) == len(ids) else nll.tolist()
    if right:
        nats[-1] = float(-lm.next_log_probs(torch.tensor([[*left, *ids]]))[0, right[0]])
    fluency = edits._fluency
    for i, place in enumerate(edits.places):
        stop = place.index + place.removed
        kept = [n for j, n in enumerate(nats) if j >= given and not place.index <= j < stop]
        begun = torch.tensor([[*left, *ids[: place.index]]], dtype=torch.long)
        each = -lm.next_log_probs(begun)[0] if begun.numel() or lm.begin_ids else torch.zeros(420)
        alone = place.index < given  # A first token that nothing predicts.
        count = len(kept) + int(not alone)
        torch.testing.assert_close(fluency[i], (sum(kept) + each) / count, atol=1e-4, rtol=1e-5)


@both
def test_at_the_last_word_only_the_end_of_the_text_is_guessed(primary: Any) -> None:
    edits = read(primary, ["An image of a dog"], "An image of")
    last = max(i for i, p in enumerate(edits.places) if p.kind == REPLACE)
    tokens = edits.editor.proposer.classes.initial_ids[:8]
    candidates = edits.take(torch.full((8,), last), tokens)
    (nll,) = primary().nll([primary().tokenizer.encode("An image of a dog")], [0])
    for text, expected in zip(candidates.texts, candidates.fluency.tolist(), strict=True):
        (own,) = primary().nll([primary().tokenizer.encode(text)], [0])
        (exact,) = edits.bound.objective.fluency.evaluate([text], [edits.bound.problems[0]])
        ids = primary().tokenizer.encode(text)
        count = len(ids) - len(primary().tokenizer.encode("An image of")) + 1
        assert expected * count - float(nll[-1]) == pytest.approx(
            exact * count - float(own[-1]), abs=1e-4
        )


@both
def test_expected_losses_are_fluency_and_what_the_proposal_says(primary: Any) -> None:
    problem = Problem("0", TARGETS, "An image of")
    bound = Objective(terms(primary, weight=2.0)).bind([problem])
    editor = Editor.start(bound, RandomNoise())
    edits = editor.read(["An image of a happy dog."], [0])
    initial = editor.proposer.classes.initial_ids
    allowed = {REPLACE: editor.proposer.classes.word_initial}
    allowed[INSERT] = allowed[REPLACE]
    allowed[LENGTHEN] = allowed[RESPELL] = editor.proposer.classes.word_internal
    for i, place in enumerate(edits.places):
        there = torch.isfinite(edits.scores[i])
        assert not (there & ~allowed[place.kind]).any()
        if place.kind in (REPLACE, INSERT):
            assert torch.equal(torch.nonzero(there).flatten(), initial)
            want = 2.0 * edits._fluency[i, initial]
            for term in bound.terms:
                scorer = editor.proposer.scorers[term.name]
                want = want + term.weight * scorer.word_initial(edits._positions([i]), initial)[0]
            torch.testing.assert_close(edits.scores[i, initial], want, atol=1e-5, rtol=1e-5)
        else:
            assert int(there.sum()) == editor.proposer.num_word_internal


def test_the_best_come_first_and_none_twice() -> None:
    edits = read(gpt2, ["An image of a dog.", "An image of two people"], "An image of")
    found = edits.best(5)
    assert len(set(found.pairs)) == len(found) > 20
    assert found.predicted.tolist() == sorted(found.predicted.tolist())
    assert set(found.rows.tolist()) == {0, 1}
    more = edits.best(50)
    assert set(found.pairs) < set(more.pairs)
    assert len(Candidates.join(more, found)) == len(more)


def test_a_text_without_prefix_keeps_a_word_at_its_beginning() -> None:
    edits = read(gpt2, ["a happy dog"])
    first = [i for i, p in enumerate(edits.places) if not p.left]
    assert [edits.places[i].kind for i in first] == [REPLACE]
    texts = edits.take(*_finite(edits.scores, first[0])).texts
    tokens = set(edits.editor.proposer.classes.first_words[0].tolist())
    pieces = gpt2().tokenizer.token_texts
    assert set(texts) <= {pieces[t] + " happy dog" for t in tokens}
    assert len(texts) > 10
    assert all(text[0].isalnum() for text in (*edits.best(420).texts, *edits.removals().texts))
    assert "happy dog" in edits.removals().texts
    assert "Happy dog" in read(gpt2, ["A happy dog"]).removals().texts
    assert "My dog" in read(gpt2, ["Yes, my dog"]).removals().texts


def _finite(scores: Tensor, row: int) -> tuple[Tensor, Tensor]:
    tokens = torch.nonzero(torch.isfinite(scores[row])).flatten()
    return torch.full_like(tokens, row), tokens


def test_draws_depend_on_the_own_seed_alone_and_replace_words() -> None:
    texts = ["An image of a dog.", "An image of two people walking."]
    edits = read(gpt2, texts, "An image of")
    pair = edits.sample(8, 6, [1, 2])
    alone = read(gpt2, texts[1:], "An image of").sample(8, 6, [2])
    assert [t for r, t in pair.pairs if r == 1] == list(alone.texts)
    assert len(alone) > 1
    assert edits.sample(8, 6, [3, 4]).texts != pair.texts
    counts = [len(texts[row].split()) for row in pair.rows.tolist()]
    assert [len(text.split()) for text in pair.texts] == counts


def test_words_are_removed_and_wanted_ones_added() -> None:
    rule = Require(("museum",))
    edits = read(gpt2, ["An image of a dog"], "An image of", "{}", rule)
    texts = edits.removals().texts
    assert {"An image of dog", "An image of a", "An image of a dog.", "An image of a dog!"} <= {
        *texts
    }
    wanted = [t for t in texts if "museum" in t]
    assert {"An image of museum a dog", "An image of a museum dog", "An image of a dog museum"} <= {
        *wanted
    }
    assert {"An image of museum dog", "An image of a museum"} <= {*wanted}


def test_a_text_that_breaks_off_at_a_comma_can_end() -> None:
    texts = read(gpt2, ["An image of a dog,"], "An image of").removals().texts
    assert {"An image of a dog.", "An image of a dog!"} <= {*texts}


def test_a_wanted_word_is_added_whole_where_the_text_ends_in_its_beginning() -> None:
    edits = read(gpt2, ["An image of a muse"], "An image of", "{}", Require(("museum",)))
    wanted = [t for t in edits.removals().texts if "um" in t]
    assert "An image of a museum muse" in wanted
    assert all("museum" in t.split() for t in wanted)


def test_forbidden_texts_are_no_candidates() -> None:
    edits = read(gpt2, ["An image of a dog"], "An image of", "{}", Forbid(("the",)), MaxWords(2))
    candidates = Candidates.join(edits.best(420), edits.removals())
    assert len(candidates) > 50
    assert not any(t[-4:] == " the" or " the " in t for t in candidates.texts)
    assert all(len(t.split()) <= 5 for t in candidates.texts)


def test_a_text_that_is_not_allowed_can_be_mended_step_by_step() -> None:
    rules = (Forbid(("red", "old")), MaxWords(4))
    edits = read(gpt2, ["An image of a red and old house at night"], "An image of", "{}", *rules)
    start = edits.bound.evaluate(edits.texts, [0])[0]
    scored = edits.score(Candidates.join(edits.best(4), edits.removals()), 4)
    assert scored[0][2].violation < start.violation
    assert min(e.violation for _, _, e in scored) > 0  # One edit is not enough.


@both
def test_texts_that_a_model_has_no_room_for_are_no_candidates(primary: Any) -> None:
    room = MAX_LENGTH - primary().tokenizer.num_special
    text = "a" + " a" * (room - 1)
    for template in ("{}", "a{} a"):
        left, right = template.split("{}")
        fits = text[: len(text) - 2 * (bool(left) + bool(right))]
        problem = Problem("0", template=template)
        bound = Objective([Fluency(primary())]).bind([problem])
        edits = Editor.start(bound, LanguageModelOnly()).read([fits], [0])
        candidates = Candidates.join(edits.best(2), edits.removals())
        assert len(candidates) > 50
        assert_scored_as_texts(edits, candidates)


@pytest.mark.parametrize("text", ["...", "", "?!"])
def test_a_text_without_words_has_no_edits(text: str) -> None:
    edits = read(gpt2, [text or "."])
    assert len(edits.best(4)) == len(edits.removals()) == 0
    assert edits.score(edits.best(4), 4) == []


def test_the_last_word_is_not_removed() -> None:
    assert not any(t in (".", "") for t in read(gpt2, ["dog."]).removals().texts)
    after_prefix = read(gpt2, ["An image of dog."], "An image of").removals().texts
    assert not any(t.rstrip(".!?") == "An image of" for t in after_prefix)


def bound_of(labels: Sequence[str]) -> BoundObjective:
    problems = [Problem(str(i), {"sentiment": label}, "a") for i, label in enumerate(labels)]
    return Objective([Fluency(gpt2()), Label(classifier())]).bind(problems)


def test_problems_do_not_mix() -> None:
    bound = bound_of(["positive", "negative", "neutral"])
    editor = Editor.start(bound, LanguageModelOnly())
    edits = editor.read(["a dog.", "a red house", "a dog."], [2, 0, 1])
    assert_scored_as_texts(edits, edits.best(3))


def test_what_is_known_of_texts_changes_no_loss_and_is_read_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    problem = Problem("0", {"text": "a happy dog"})
    bound = Objective([Fluency(gpt2()), TextSimilarity(sentence_encoder())]).bind([problem])
    editor = Editor.start(bound, AdditiveWordTable(WordTable(tmp_path)))
    edits = editor.read(["An image of a dog.", "two people"], [0, 0])
    exact = bound.evaluate(edits.texts, edits.problems)
    for one, other in zip(edits.evaluate(), exact, strict=True):
        assert one.terms == pytest.approx(other.terms, abs=1e-5)
    candidates, (term,) = Candidates.join(edits.best(4), edits.removals()), bound.terms
    # The proposal has read each text, and each without one of its words, which are candidates.
    assert len(set(candidates.texts) & set(term.known)) > 4
    problems = torch.zeros(len(candidates), dtype=torch.long)
    origins = [edits.texts[row] for row in candidates.rows.tolist()]
    got = term.score_texts(candidates.texts, problems, origins)
    torch.testing.assert_close(got, term.evaluate(candidates.texts, problems), atol=1e-5, rtol=1e-5)

    def refuse(*_: Any, **__: Any) -> Tensor:
        pytest.fail("all texts are known now")

    monkeypatch.setattr(type(sentence_encoder()), "outputs", refuse)
    assert torch.equal(term.score_texts(candidates.texts, problems, origins), got)
    again = editor.read(edits.texts, edits.problems)
    assert torch.equal(again.scores, edits.scores)
