"""`fuseprompt datasets`: what it prints and its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuseprompt.cli.main import main
from fuseprompt.evaluation.datasets import NAMES, SOURCES
from tests.evaluation.datasets import fixtures


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


def test_a_complete_folder_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = fixtures.write_folder(tmp_path)
    assert main(["datasets", "folder", "--root", str(root)]) == 0
    assert capsys.readouterr().out.splitlines()[1:4] == [
        "  images       3",
        "  captions     4 by people",
        "  to write     3",
    ]
    assert main(["datasets", "folder", "--root", str(root), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_what_is_missing_is_told_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = fixtures.write_senticap(tmp_path)
    (root / "val2014" / fixtures.coco_name(7)).unlink()
    assert main(["datasets", "senticap", "--root", str(root)]) == 1
    printed = capsys.readouterr().out
    assert "  to write     4 (2 negative, 2 positive)" in printed
    assert f"1 images are missing or empty: {root}/val2014/{fixtures.coco_name(7)}\n" in printed
    assert "2 images, published are 743" in printed
    assert main(["datasets", "senticap", "--root", str(root), "--json", "--sentiment=both"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    check = json.loads(line)
    assert (check["missing"], check["images"], check["complete"]) == (1, 2, False)


def test_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "--root", "x"]) == 2
    assert "--root: of which dataset? Name one of coco" in capsys.readouterr().err
    assert main(["datasets", "coco", "--split", "val2014"]) == 2
    assert "give --root DIR, too" in capsys.readouterr().err


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
