"""`fuseprompt bench fit` and `bench search`: what they print."""

import json

from fuseprompt.cli.bench import bench_fit, bench_search
from fuseprompt.evaluation import bench, bench_vocabularies
from fuseprompt.evaluation import bench_search as searches


def test_a_fit_as_json_and_as_text(monkeypatch, capsys):
    prepared = []
    result = bench.FitBench(60.0, 3.0, 20.0, 7000.0, 600.0, 16_384)
    monkeypatch.setattr(bench, "bench_fit", lambda **_: result)
    monkeypatch.setattr(bench_vocabularies, "prepare_vocabularies", lambda: prepared.append(1))
    assert bench_fit(json=True) == 0
    assert json.loads(capsys.readouterr().out)["ratio"] == 20.0
    assert bench_fit(prepare=True) == 0
    output = capsys.readouterr()
    assert "published" in output.out
    assert "Fitting twice" in output.err
    assert prepared == [1]


def test_searches_as_json_lines_and_as_text(monkeypatch, capsys):
    asked, prepared = [], []
    scaling = (searches.Scaling(1, 2.0, 900.0), searches.Scaling(4, 2.1, 950.0))
    row = searches.SearchBench("paper2", 9.0, 600.0, 66.7, 0.85, 0.9, 0.95, 3000.0, scaling)

    def measure(shapes):
        asked.append(shapes)
        yield row

    monkeypatch.setattr(searches, "bench_search", measure)
    monkeypatch.setattr(bench_vocabularies, "prepare_vocabularies", lambda: prepared.append(1))
    assert bench_search(shapes="paper2, offline", json=True) == 0
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
    assert bench_search(prepare=True) == 0
    output = capsys.readouterr()
    assert "ratio                  66.7" in output.out
    assert " 4 at once             2.10 s a caption" in output.out
    assert "Searching" in output.err
    assert (asked, prepared) == ([["paper2", "offline"], ["paper2"]], [1])
