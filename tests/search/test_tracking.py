"""Searches in a tracker: what is logged, that it changes no result, real trackio where it is."""

import json
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fuseprompt.search.minimize import Progress, iterate, minimize
from fuseprompt.search.tracking import JsonLines, Tracking
from fuseprompt.tasks.job import Failure
from tests.methods.fixtures import method, objective, problems


class Plain:
    """A tracker that has what is asked for and no more."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def init(self, *, project: str, config: dict[str, Any]) -> None:
        self.calls.append(("init", (project, config)))

    def log(self, data: dict[str, Any], /) -> None:
        self.calls.append(("log", data))

    def finish(self) -> None:
        self.calls.append(("finish", None))

    @property
    def logged(self) -> list[dict[str, Any]]:
        return [data for name, data in self.calls if name == "log"]


class WithTables(Plain):
    """A tracker such as trackio and wandb, which show tables with pictures."""

    class Table:
        def __init__(self, columns: list[str], data: list[list[Any]]) -> None:
            self.columns, self.data = columns, data

    class Image:
        def __init__(self, picture: Image.Image) -> None:
            self.size = picture.size


def test_each_step_has_every_loss_and_the_text_of_each_problem() -> None:
    tracker, seen = Plain(), list[Progress]()
    results = minimize(
        objective(), method(steps=2), problems(), tracker=tracker, on_step=seen.append
    )
    names = [name for name, _ in tracker.calls]
    assert names == ["init", *["log"] * (len(seen) + 1), "finish"]
    assert tracker.calls[0][1] == ("fuseprompt", {})
    *steps, last = tracker.logged
    for logged, step in zip(steps, seen, strict=True):
        assert logged["search_step"] == step.step
        for item, text, exact in zip(step.ids, step.texts, step.evaluations, strict=True):
            assert logged[f"{item}/text"] == text
            assert logged[f"{item}/loss"] == exact.loss
            for name in ("fluency", "image", "sentiment"):
                assert logged[f"{item}/{name}"] == exact.terms[name]
    assert len(steps[0]) == 1 + 3 * 5
    assert [row["text"] for row in last["results"]] == [r.text for r in results]
    assert [row["item"] for row in last["results"]] == ["red", "blue", "green"]


def test_a_tracker_changes_no_result() -> None:
    plain = minimize(objective(), method(steps=3), problems())
    tracked = minimize(objective(), method(steps=3), problems(), tracker=Plain())
    assert [(r.text, r.loss) for r in plain] == [(r.text, r.loss) for r in tracked]


def test_a_table_has_thumbnails_where_the_tracker_shows_them() -> None:
    tracker = WithTables()
    large = Image.new("RGB", (640, 320), "red")
    with Tracking(tracker, "colours", config={"job": "Test"}) as tracking:
        tracking.add({"image": [large], "text": "a", "terms": {"image": 2.0}, "settings": {}})
        tracking.add({"image": "no such file.png", "error": "no such file"})
    assert tracker.calls[0] == ("init", ("colours", {"job": "Test"}))
    (logged,) = tracker.logged
    table = logged["results"]
    assert table.columns == ["text", "terms.image", "picture", "image", "error"]
    (text, loss, picture, *_), second = table.data
    assert (text, loss, picture.size) == ("a", 2.0, (160, 80))
    assert second == [None, None, None, "no such file.png", "no such file"]
    assert large.size == (640, 320)


def test_a_search_may_be_ended_and_the_run_ends_whatever_happens() -> None:
    tracker = Plain()
    results = minimize(
        objective(), method(steps=9), problems(), tracker=tracker, on_step=lambda step: True
    )
    assert len(tracker.logged) == 2
    assert len(results) == 3
    broken = Plain()
    with suppress(KeyboardInterrupt), Tracking(broken, "p") as tracking:
        tracking.add({"text": "kept"})
        raise KeyboardInterrupt
    assert [name for name, _ in broken.calls] == ["init", "log", "finish"]


def test_results_of_jobs_are_kept_and_failures_passed_on() -> None:
    tracker = Plain()
    with Tracking(tracker, "p") as tracking:
        results = [
            Failure("a.png", "unreadable"),
            *iterate(objective(), method(steps=1), problems()[:1]),
        ]
        assert list(tracking.keep(results)) == results
    assert [row["item"] for row in tracker.logged[0]["results"]] == ["red"]


def test_long_ids_and_slashes_make_no_keys_of_their_own() -> None:
    tracker = Plain()
    step = Progress(1, 2, ("a text",), ("0:" + "photos/" * 20,))
    vars(step)["evaluations"] = [type("E", (), {"loss": 1.0, "terms": {"fluency": 1.0}})]
    with Tracking(tracker, "p") as tracking:
        tracking.on_step(step)
    keys = [key.split("/") for key in tracker.logged[0] if key != "search_step"]
    assert {len(parts) for parts in keys} == {2}
    assert {len(item) for item, _ in keys} == {60}


def test_json_lines_need_nothing(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text('{"results": []}\n')  # Of a run before, which is kept.
    with Tracking(JsonLines(), str(file), config={"job": "Test"}) as tracking:
        results = minimize(objective(), method(steps=2), problems(), on_step=tracking.on_step)
        assert list(tracking.keep(results)) == results
    before, first, *steps, last = map(json.loads, file.read_text().splitlines())
    assert before == {"results": []}
    assert first == {"config": {"job": "Test"}}
    assert [step["search_step"] for step in steps] == list(range(1, len(steps) + 1))
    assert [row["text"] for row in last["results"]] == [r.text for r in results]


_OFFLINE = """
import socket

def refuse(*args, **kwargs):
    raise OSError("the network is off")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import trackio
from fuseprompt.search.minimize import minimize
from tests.methods.fixtures import method, objective, problems
print([r.text for r in minimize(objective(), method(steps=2), problems(), tracker=trackio)])
"""


@pytest.mark.slow
def test_the_real_trackio_keeps_a_run_with_the_network_off(tmp_path: Path, monkeypatch) -> None:
    """In a process of its own: trackio fixes its folder when it is imported."""
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _OFFLINE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("*.db")
    with sqlite3.connect(file) as database:
        rows = [json.loads(row) for (row,) in database.execute("SELECT metrics FROM metrics")]
    *steps, last = rows
    assert steps[0]["red/loss"] > 0
    assert steps[0]["red/text"].startswith("An image of")
    table = last["results"]["_value"]
    assert repr([row["text"] for row in table]) in done.stdout
    assert table[0]["picture"]["_type"] == "trackio.image"
    assert len(list((tmp_path / "media").rglob("*.png"))) == 3
