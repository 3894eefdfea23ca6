"""`fuseprompt score`: what it prints, and its exit codes."""

import json
from pathlib import Path

import pytest

from fuseprompt.cli.main import main
from fuseprompt.evaluation.metrics import coco_tools
from fuseprompt.evaluation.metrics.base import METRICS
from tests.evaluation.datasets import fixtures
from tests.evaluation.metrics.tools import needs_tools, use_light_library

RESULTS = [
    {"image_id": 7, "caption": "A kite over a pond."},
    {"image_id": 12, "caption": "A green door."},
]


@pytest.fixture
def no_meteor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let METEOR cost nothing."""
    monkeypatch.setattr(coco_tools, "meteor", lambda *_: 0.25)


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments that score two captions of three images."""
    use_light_library(tmp_path / "light", monkeypatch)
    root = fixtures.write_coco(tmp_path / "coco")
    file = fixtures.write_json(tmp_path / "results.json", RESULTS)
    return ["score", str(file), "--dataset", "coco", "--root", str(root)]


@needs_tools
def test_one_json_line_has_the_keys_of_the_contract(arguments: list[str], capsys) -> None:
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    read = json.loads(line)
    assert list(read) == ["dataset", "images", "coverage", *METRICS]
    assert (read["dataset"], read["images"]) == ("coco", 3)
    assert read["coverage"] == pytest.approx(2 / 3)
    assert 0 < read["bleu_1"] < 1
    assert list(read["spice"]) == ["unavailable"]
    assert "note: 1 of 3 images have no caption and count as empty" in printed.err


@needs_tools
@pytest.mark.usefixtures("no_meteor")
def test_a_table_for_people(arguments: list[str], capsys) -> None:
    assert main([*arguments, "--distinct", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0] == "coco, split val2014"
    assert lines[1].split() == ["images", "3,", "66.7", "%", "with", "a", "caption"]
    values = {line.split()[0]: line.split()[1] for line in lines[1:] if len(line.split()) > 1}
    assert 0 < float(values["bleu_1"]) <= 100
    assert float(values["distinct_1"]) == pytest.approx(6 / 8, abs=1e-4)
    assert values["spice"] == "unavailable:"


@needs_tools
@pytest.mark.usefixtures("no_meteor")
def test_parts_are_told_apart(tmp_path: Path, arguments: list[str], capsys) -> None:
    root = fixtures.write_nocaps(tmp_path / "nocaps")
    file = fixtures.write_json(tmp_path / "n.json", {str(i): f"Thing {i}." for i in range(3)})
    options = ["--dataset", "nocaps", "--root", str(root), "--by-domain"]
    assert main(["score", str(file), *options, "--json", "--quiet"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("part") for line in lines] == [None, "in-domain", "near-domain", "out-domain"]
    assert "one image is not enough" in lines[1]["cider"]["unavailable"]
    assert main(["score", str(file), *options, "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("SPICE needs") == 1  # People read a reason once.
    assert printed.count("unavailable: see above") >= 3


@needs_tools
def test_without_java_nothing_is_scored_and_the_exit_code_says_so(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*arguments, "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert all("Java is not installed" in read[name]["unavailable"] for name in METRICS)


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({1: "gone.json"}, 2, "gone.json: no such file"),
        ({3: "coc"}, 1, "Did you mean coco"),
        ({5: "nowhere"}, 1, "nowhere"),
    ],
)
def test_faults_are_one_sentence(
    arguments: list[str], changed: dict[int, str], code: int, message: str, capsys
) -> None:
    wrong = [changed.get(place, argument) for place, argument in enumerate(arguments)]
    assert main(wrong) == code
    assert message in capsys.readouterr().err
