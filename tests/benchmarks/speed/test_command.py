"""`python -m benchmarks.speed fit|search`: what is printed."""

import json

from benchmarks.speed import __main__ as command
from benchmarks.speed.fit import FitBench
from benchmarks.speed.search import Scaling, SearchBench
from benchmarks.speed.texts import TextBench


def test_a_fit_as_json_and_as_text(monkeypatch, capsys):
    result = FitBench(60.0, 3.0, 20.0, 7000.0, 600.0, 16_384)
    monkeypatch.setattr(command, "bench_fit", lambda **_: result)
    assert command.main(["fit", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == [
        "published_s",
        "ours_s",
        "ratio",
        "published_peak_mb",
        "ours_peak_mb",
        "words_per_case",
    ]
    assert command.main(["fit"]) == 0
    output = capsys.readouterr()
    assert "published" in output.out
    assert "Fitting twice" in output.err


def test_searches_as_json_lines_and_as_text(monkeypatch, capsys):
    asked = []
    scaling = (Scaling(1, 2.0, 900.0), Scaling(4, 2.1, 950.0))
    row = SearchBench("paper2", 9.0, 600.0, 66.7, 0.85, 0.9, 0.95, 3000.0, scaling)

    def measure(shapes):
        asked.append(shapes)
        yield row

    monkeypatch.setattr(command, "bench_search", measure)
    assert command.main(["search", "--shapes", "paper2, offline", "--json"]) == 0
    output = capsys.readouterr()
    line = json.loads(output.out)
    assert list(line) == [
        "shapes",
        "published_candidates_per_s",
        "ours_candidates_per_s",
        "ratio",
        "ceiling_ratio",
        "forward_share",
        "token_efficiency",
        "peak_mb",
        "scaling",
    ]
    assert line["scaling"][1] == {"problems": 4, "seconds_per_caption": 2.1, "peak_mb": 950.0}
    assert output.err == ""
    assert command.main(["search"]) == 0
    output = capsys.readouterr()
    assert "ratio                  66.7" in output.out
    assert " 4 at once             2.10 s a caption" in output.out
    assert "Searching" in output.err
    assert asked == [["paper2", "offline"], ["paper2"]]


def test_a_row_without_a_published_arm(monkeypatch, capsys):
    row = TextBench("edit", 9.0, 0.75, 0.9, 0.5, 900.0)
    monkeypatch.setattr(command, "bench_search", lambda shapes: iter([row]))
    assert command.main(["search", "--shapes", "edit", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == [
        "shapes",
        "ours_candidates_per_s",
        "ceiling_ratio",
        "forward_share",
        "token_efficiency",
        "peak_mb",
    ]
    assert command.main(["search", "--shapes", "edit"]) == 0
    output = capsys.readouterr().out
    assert "of the ceiling         0.75" in output
    assert "published" not in output


def test_an_unknown_shape_is_one_sentence(capsys):
    assert command.main(["search", "--shapes", "paper4", "--json"]) == 1
    assert "expected some of paper2, paper3, offline, edit, continuation" in capsys.readouterr().err
