"""What the commands of jobs share: `--track`, in a file and in a stand-in for trackio."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fuseprompt.cli.job import JobOutput, Report, Shown, show_failure
from fuseprompt.errors import FuseError, UsageError
from fuseprompt.search.minimize import Progress

TERMS = {"fluency": 2.0, "image": 0.5}


def step() -> Progress:
    progress = Progress(1, 2, ("An image",), ("0:a.png",))
    vars(progress)["evaluations"] = [SimpleNamespace(loss=2.5, terms=TERMS)]
    return progress


def shown() -> list[Shown]:
    done = Shown({"image": "a.png", "text": "An image.", "loss": 2.5, "terms": TERMS}, "An image.")
    return [done, show_failure("b.png", "no such file", "image")]


def test_track_writes_steps_and_results_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steps.jsonl"
    with Report(JobOutput(track=str(file), json=True), 2, "images", "Captions") as report:
        report.on_step(step())
        assert report.print_all(shown()) == 1
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"config": {"job": "Captions"}},
        {
            "search_step": 1,
            "0:a.png/fluency": 2.0,
            "0:a.png/image": 0.5,
            "0:a.png/loss": 2.5,
            "0:a.png/text": "An image",
        },
        {
            "results": [
                {
                    "image": "a.png",
                    "text": "An image.",
                    "loss": 2.5,
                    "terms.fluency": 2.0,
                    "terms.image": 0.5,
                },
                {"image": "b.png", "error": "no such file"},
            ]
        },
    ]
    assert [*map(json.loads, capsys.readouterr().out.splitlines())]


def test_track_is_a_project_of_trackio_whose_own_words_are_no_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    def called(name: str):
        return lambda *args, **kwargs: (calls.append(name), print("* Trackio ..."))

    stand_in = SimpleNamespace(**{name: called(name) for name in ("init", "finish")})
    stand_in.log = lambda data: calls.append(" ".join(sorted(data)))
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    with Report(JobOutput(track="photos", json=True), 2, "images") as report:
        report.print_all(shown())
    assert calls == ["init", "results", "finish"]
    out, err = capsys.readouterr()
    assert len([*map(json.loads, out.splitlines())]) == 2
    assert "note: to see the searches: trackio show --project 'photos'" in err


def test_track_says_what_is_missing_and_what_trackio_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    missing = r"--track p: trackio is missing. pip install 'fuseprompt\[track\]', or name a file"
    with pytest.raises(FuseError, match=missing):
        Report(JobOutput(track="p"), 1, "images")

    def refuse(**kwargs: object) -> None:
        raise ValueError("Project name 'registry-p' is not allowed")

    stand_in = SimpleNamespace(init=refuse, log=print, finish=print)
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    with pytest.raises(UsageError, match="--track registry-p: Project name 'registry-p' is not"):
        Report(JobOutput(track="registry-p"), 1, "images")
