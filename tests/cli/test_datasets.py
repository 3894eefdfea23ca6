"""`fuseprompt datasets`: what it prints and its exit codes."""

import json
import os
import subprocess
import sys

import pytest

from fuseprompt.cli.main import main
from fuseprompt.evaluation.datasets import NAMES, SOURCES


def test_it_lists_every_dataset_with_its_files_and_origin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["datasets"]) == 0
    printed = capsys.readouterr().out
    for name, source in SOURCES.items():
        assert f"{name}: {source.title}" in printed
        assert all(line in printed for line in (*source.files, *source.origin, *source.remarks))


def test_json_and_quiet_lists_have_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["dataset"] for line in lines] == list(NAMES)
    assert lines[0]["counts"]["val2014"] == {"images": 40_504, "captions": 202_654}
    assert main(["datasets", "--quiet"]) == 0
    assert capsys.readouterr().out.split() == list(NAMES)


def test_one_dataset_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "nocaps"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("nocaps: NoCaps\n  splits      val (4,500 images)")
    assert "coco:" not in printed


def test_an_unknown_dataset_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "coc"]) == 1
    assert "'coc' is no dataset" in capsys.readouterr().err


def test_listing_loads_no_torch() -> None:
    code = (
        "import sys\nfrom fuseprompt.cli.main import main\n"
        "main(['datasets', '--quiet'])\nassert 'torch' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
