"""The rows `edit` and `continuation` at tiny shapes: their plumbing, and the least work."""

from dataclasses import asdict

import pytest

from benchmarks.speed import search as bench_search
from benchmarks.speed import texts
from benchmarks.speed.meter import (
    Asked,
    Work,
    least_work_of_continuations,
    least_work_of_edits,
    recording_edits,
    work_of_reading,
)
from benchmarks.speed.texts import TextBench, continuation_setup, edit_setup, measure_texts
from fuseprompt.objective.continuation import Continuation
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.terms import Fluency, TextSimilarity
from fuseprompt.search.minimize import minimize
from fuseprompt.text.retokenize import encode_whole
from tests.tiny import gpt2, sentence_encoder

BUILD = {
    "edit": lambda: edit_setup(gpt2(), sentence_encoder(), steps=2),
    "continuation": lambda: continuation_setup(gpt2(), steps=2),
}


@pytest.mark.parametrize("name", BUILD)
def test_a_row_has_a_rate_and_a_ceiling(name, monkeypatch):
    monkeypatch.setattr(texts, "REPEATS", 1)
    monkeypatch.setattr(texts, "_NUM_PROBLEMS", 1)
    row = measure_texts(name, BUILD[name]())
    assert row.ours_candidates_per_s > 0
    assert row.ceiling_ratio > 0
    assert 0 < row.forward_share <= 1
    assert 0 < row.token_efficiency <= 1


def test_rows_are_measured_in_processes_of_their_own(monkeypatch):
    row = TextBench("edit", 9.0, 0.75, 0.9, 0.5, 900.0)
    asked = []

    def run(module, call, **options):
        asked.append((module, call))
        return asdict(row)

    monkeypatch.setattr(bench_search, "run_in_child", run)
    assert list(bench_search.bench_search(["edit"])) == [row]
    assert asked == [("benchmarks.speed.search", "measure_shape('edit')")]


def test_recording_changes_nothing_and_keeps_every_candidate():
    setup = BUILD["edit"]()
    (one,) = minimize(setup.objective, setup.method, setup.problems[0])
    secondaries: list[Asked] = []
    primary: list[Asked] = []
    with recording_edits(secondaries, primary):
        (two,) = minimize(setup.objective, setup.method, setup.problems[0])
    minimize(setup.objective, setup.method, setup.problems[0])
    assert one.history == two.history
    assert [len(step.texts) for step in primary] == [e.evaluations for e in two.history]
    assert len(secondaries) == len(primary)
    for all_terms, fluent in zip(secondaries, primary, strict=True):
        assert all_terms.beams == fluent.beams
        assert set(fluent.texts) <= set(all_terms.texts)


def test_an_edit_costs_the_primary_its_end_and_a_secondary_the_whole_text():
    encode, encoder = gpt2().tokenizer.encode, sentence_encoder()
    edited = ("An image of a red dog", "An image of a")
    asked = [
        Asked(("An image of a dog",), (0, 0, 0), (*edited, edited[0])),
        Asked((edited[0],), (0,), ("An image of a red cat",)),
    ]
    objective = Objective([Fluency(gpt2()), TextSimilarity(encoder)])
    work = least_work_of_edits(objective, asked, asked)
    kept = len(encode("An image of a"))
    new = [len(encode(edited[0])) - kept, 1]  # something must be read to predict the end
    origin = len(encode("An image of a dog"))
    last = len(encode("An image of a red cat")) - len(encode("An image of a red"))
    assert work["fluency"] == (Work(3, sum(new) + origin), Work(1, last))
    tokenizer = encoder.tokenizer
    whole = [len(tokenizer.add_special_tokens(tokenizer.encode(t))) for t in edited]
    assert work["similarity"][0] == Work(2, sum(whole))


def test_a_continuation_costs_what_a_candidate_adds_and_all_but_its_own_last_token():
    encode = gpt2().tokenizer.encode
    asked = [Asked(("An image of",), (0, 0), ("An image of a", "An image of the"))]
    objective = Objective([Fluency(gpt2()), Continuation(gpt2())])
    work = least_work_of_continuations(objective, asked, " cat")
    begun = len(encode("An image of"))
    read = [len(encode(f"{text} cat")) - 1 - begun for text in asked[0].texts]
    assert work["continuation"] == (Work(2, sum(read)),)
    assert work["fluency"] == (Work(1, begun),)


def test_reading_kept_texts_again_costs_all_of_their_tokens():
    texts, encoder = ("An image of a dog", "A cat"), sentence_encoder()
    own = [len(ids) for ids in gpt2().tokenizer.encode_batch(list(texts))]
    whole = encode_whole(encoder.tokenizer, list(texts)).lengths.tolist()
    similar = Objective([Fluency(gpt2()), TextSimilarity(encoder)])
    want = {"fluency": (Work(2, sum(own)),), "similarity": (Work(2, sum(whole)),)}
    assert work_of_reading(similar, texts) == want
    followed = Objective([Fluency(gpt2()), Continuation(gpt2())])
    read = [len(gpt2().tokenizer.encode(f"{text} cat")) - 1 for text in texts]
    assert work_of_reading(followed, texts, " cat")["continuation"] == (Work(2, sum(read)),)
