"""`fuseprompt doctor` and `fuseprompt prepare`: what they print and their exit codes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuseprompt.cli.doctor import examine
from fuseprompt.cli.main import main
from fuseprompt.cli.prepare import prepare
from fuseprompt.offline import convert
from fuseprompt.offline import prepare as preparation
from fuseprompt.offline.manifest import OFFLINE_IDS
from tests.evaluation.metrics.tools import fake_java
from tests.offline.fake_build import fake_converters, no_download
from tests.tiny import (
    bert_tokenizer,
    classifier_module,
    clip_module,
    clip_processor,
    clip_tokenizer,
    gpt2_module,
    gpt2_tokenizer,
    save_folder,
)


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test a cache of its own, the default configuration and fake models."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "own"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("FUSEPROMPT_MODELS", raising=False)
    monkeypatch.setattr(preparation, "download_archives", no_download)
    monkeypatch.setattr(convert, "CONVERTERS", fake_converters(0))


def test_without_models_it_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 1
    printed = capsys.readouterr()
    assert "offline:lm is not prepared on this machine" in printed.out
    assert "To mend it: fuseprompt prepare" in printed.out
    assert printed.err == ""


def test_with_models_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    prepare(quiet=True)
    assert main(["doctor"]) == 0
    assert "Everything that offline needs is here" in capsys.readouterr().out


def test_what_scoring_needs_is_told_and_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = fake_java(tmp_path, "", monkeypatch)
    assert examine()["metrics"]["java"] == str(java)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    report = examine()
    assert report["metrics"]["java"].startswith("Java is not installed")
    assert not any("Java" in remedy["problem"] for remedy in report["remedies"])


def test_extras_are_shown_with_version_or_remedy_and_are_no_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(quiet=True)
    known = {"gradio": "6.31.0", "trackio": "missing"}
    monkeypatch.setattr("fuseprompt.cli.doctor._version_of", lambda name: known.get(name, "1.0"))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "gradio         6.31.0\n" in out
    assert "trackio        not installed (pip install 'fuseprompt[track]')\n" in out


def test_quiet_prints_only_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--quiet"]) == 1
    assert capsys.readouterr().out.startswith("offline:sentence is not prepared")
    prepare(quiet=True)
    assert main(["doctor", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_json_is_one_object_with_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    prepare(quiet=True)
    assert main(["doctor", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert [state["id"] for state in report["offline"]] == list(OFFLINE_IDS)
    assert all(state["ready"] and state["size"] > 0 for state in report["offline"])
    assert report["configuration"] == "offline"
    assert report["remedies"] == []
    assert {"fuseprompt", "torch", "transformers"} <= set(report["versions"])


@pytest.mark.parametrize("content", ["half a model", "l\0", "\0\0"])
def test_a_damaged_model_is_told_with_its_file(content: str) -> None:
    prepare(quiet=True)
    weights = Path(examine()["cache"]) / "offline-v1" / "lm" / "weights"
    weights.write_text(content)
    (remedy,) = examine()["remedies"]
    assert remedy["problem"].startswith("offline:lm is damaged")
    assert str(weights) in remedy["problem"]


def test_a_wrong_configuration_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_MODELS", "papr")
    (remedy,) = examine()["remedies"]
    assert "'papr': expected offline, paper or a file" in remedy["problem"]
    assert remedy["command"] == "unset FUSEPROMPT_MODELS"


def test_prepare_prints_one_json_object_and_says_when_it_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(as_json=True, quiet=True)
    first = json.loads(capsys.readouterr().out)
    assert first["made"] == [name.removeprefix("offline:") for name in OFFLINE_IDS]
    assert first["bytes"] > 0
    prepare()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Offline models ready: 0 MB in ")


def test_prepared_models_cost_neither_time_nor_torch() -> None:
    prepare(quiet=True)
    code = (
        "import sys\nfrom fuseprompt.cli.prepare import prepare\n"
        "prepare(quiet=True)\nprint(*sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    # 0.1 s on a free machine; the bound only catches an import of torch (seconds).
    assert time.perf_counter() - start < 2
    assert not {"torch", "transformers", "numpy"} & set(done.stdout.split())


def test_it_tells_kind_labels_and_what_is_unusual(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(save_folder(tmp_path / "tones", classifier_module(), bert_tokenizer()))
    assert main(["doctor", folder]) == 0
    first, *notes = capsys.readouterr().out.splitlines()
    assert main(["doctor", folder, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    labels = ", ".join(facts["labels"])
    assert first.startswith(f"{folder}: classifier of {labels}, {facts['tokens']:,} ")
    assert facts["notes"] == []
    assert [line.strip() for line in notes] == ["Nothing is unusual about it."]


def test_one_json_line_per_model_and_a_fault_is_no_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = str(save_folder(tmp_path / "writer", gpt2_module(), gpt2_tokenizer()))
    parts = (clip_module(), clip_tokenizer(), clip_processor())
    seer = str(save_folder(tmp_path / "seer", *parts))
    nothing = str(tmp_path / "nothing")
    assert main(["doctor", "--json", writer, nothing, seer]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["kind"] for row in rows] == ["language model", "", "image-text model"]
    assert [bool(row["error"]) for row in rows] == [False, True, False]


def test_quiet_prints_only_the_models_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = str(save_folder(tmp_path / "writer", gpt2_module(), gpt2_tokenizer()))
    nothing = str(tmp_path / "nothing")
    assert main(["doctor", "--quiet", writer, nothing]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{nothing}: cannot be used")
    assert writer not in out
