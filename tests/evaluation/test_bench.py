"""The benchmark's plumbing; its numbers are printed, never asserted."""

import json

import pytest

from fuseprompt.errors import FuseError, MissingModelError
from fuseprompt.evaluation import bench
from fuseprompt.evaluation.bench_vocabularies import vocabulary_file
from tests.text.tiny import byte_bpe, end_of_word_bpe


@pytest.fixture
def vocabularies(tmp_path, monkeypatch):
    """Put tiny vocabularies where those of GPT-2 and CLIP would be."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    for name, tokenizer in (("gpt2", byte_bpe()), ("clip", end_of_word_bpe())):
        file = vocabulary_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(tokenizer._backend.to_str(), encoding="utf-8")


def test_both_sides_run_on_the_same_words_in_processes_of_their_own(vocabularies, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = bench.bench_fit(words_per_case=32, num_words=6000)
    line = json.loads(bench.as_json(result))
    assert set(line) == {
        "published_s",
        "ours_s",
        "ratio",
        "published_peak_mb",
        "ours_peak_mb",
        "words_per_case",
    }
    assert line["words_per_case"] == 32
    assert min(line["published_s"], line["ours_s"], line["ratio"]) > 0


def test_missing_vocabularies_name_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    with pytest.raises(MissingModelError, match="Run it with --prepare once"):
        bench.bench_fit()


def test_a_side_that_fails_is_named(vocabularies):
    with pytest.raises(FuseError, match="ours side of the benchmark ended with exit code 1"):
        bench.bench_fit(words_per_case=0, num_words=10)
