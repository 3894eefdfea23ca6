"""The benchmark's plumbing; its numbers are printed, never asserted."""

from benchmarks.speed.fit import bench_fit


def test_both_sides_run_on_the_same_words_in_processes_of_their_own(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = bench_fit(words_per_case=32, num_words=1500)
    assert result.words_per_case == 32
    assert min(result.published_s, result.ours_s, result.ratio) > 0
