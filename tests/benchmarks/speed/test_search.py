"""The benchmark's plumbing at tiny shapes; its numbers are printed, never asserted."""

from dataclasses import asdict, replace

import pytest

from benchmarks.speed import search as bench_search
from benchmarks.speed.search import Widths, measure
from benchmarks.speed.shapes import SETUPS, noise_picture, paper_setup
from benchmarks.speed.vocabularies import build_vocabularies
from fuseprompt.errors import FuseError, ProblemError
from fuseprompt.search.minimize import minimize
from tests.fake_device import DEVICE, FakeDevice
from tests.methods.fixtures import method
from tests.tiny import clip_tokenizer, gpt2_tokenizer


def build(device=None):
    texts = (t.backend_tokenizer.to_str() for t in (gpt2_tokenizer(), clip_tokenizer()))
    vocabularies = build_vocabularies(*texts)
    return paper_setup(vocabularies, with_sentiment=True, small=True, device=device)


@pytest.fixture(scope="module")
def setup():
    return build()


def test_both_sides_are_measured(setup, monkeypatch):
    monkeypatch.setattr(bench_search, "_FIT", bench_search.FitSettings(min_words=8, by_pairs=False))
    row = measure("tiny", setup, Widths(8, 4, 16), counts=(1, 2))
    assert row.published_candidates_per_s > 0
    assert row.ours_candidates_per_s > 0
    assert row.ratio == pytest.approx(
        row.ours_candidates_per_s / row.published_candidates_per_s, rel=0.1
    )
    assert 0 < row.forward_share <= 1
    assert 0 < row.token_efficiency <= 1
    assert row.ceiling_ratio > 0
    assert [point.problems for point in row.scaling] == [1, 2]
    assert asdict(row)["scaling"][0]["peak_mb"] <= row.peak_mb


def test_problems_differ_and_a_search_of_them_can_be_repeated(setup):
    first, second = setup.problems(2)
    assert first.targets["image"].tobytes() != second.targets["image"].tobytes()
    assert noise_picture(0).tobytes() == first.targets["image"].tobytes()
    assert first.targets["sentiment"] == "positive"
    runs = [minimize(setup.objective, method(steps=2), first) for _ in range(2)]
    assert runs[0][0].history == runs[1][0].history


def test_a_search_runs_on_another_device(setup):
    def search(some):
        ours = replace(method(steps=2), proposal=some.proposal, search_width=8)
        return minimize(some.objective, ours, some.problems(1))

    with FakeDevice():
        (got,) = search(build(DEVICE))
    (want,) = search(setup)
    assert got.text == want.text
    assert got.terms == pytest.approx(want.terms, abs=1e-5, rel=1e-5)


def test_shapes_are_named(monkeypatch):
    with pytest.raises(ProblemError, match=r"offline, edit, continuation, got \['paper4'\]"):
        next(bench_search.bench_search(["paper2", "paper4"]))
    asked = []

    def run(module, call, **options):
        asked.append((module, call))
        point = bench_search.Scaling(1, 2.0, 3.0)
        row = bench_search.SearchBench("offline", 1.0, 2.0, 2.0, 0.5, 0.5, 0.5, 9.0, (point,))
        return asdict(row)

    monkeypatch.setattr(bench_search, "run_in_child", run)
    (row,) = bench_search.bench_search(["offline"])
    assert row.scaling == (bench_search.Scaling(1, 2.0, 3.0),)
    assert asked == [("benchmarks.speed.search", "measure_shape('offline')")]
    assert set(bench_search.WIDTHS) == set(SETUPS)


def test_a_shape_that_cannot_be_built_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    with pytest.raises(FuseError, match=r"The shape offline of the benchmark .*prepare"):
        next(bench_search.bench_search(["offline"]))
