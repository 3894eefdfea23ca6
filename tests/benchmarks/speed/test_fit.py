"""The benchmark's plumbing; its numbers are printed, never asserted."""

import pytest

from benchmarks.speed.fit import bench_fit
from fuseprompt.errors import FuseError


def test_both_sides_run_on_the_same_words_in_processes_of_their_own(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = bench_fit(words_per_case=32, num_words=6000)
    assert result.words_per_case == 32
    assert min(result.published_s, result.ours_s, result.ratio) > 0


def test_a_side_that_fails_is_named():
    with pytest.raises(FuseError, match="ours side of the benchmark ended with exit code 1"):
        bench_fit(words_per_case=0, num_words=10)
