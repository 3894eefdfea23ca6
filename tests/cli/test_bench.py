"""`fuseprompt bench fit`: what it prints."""

import json

from fuseprompt.cli.bench import bench_fit
from fuseprompt.evaluation import bench, bench_vocabularies


def test_json_and_readable_output(monkeypatch, capsys):
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
