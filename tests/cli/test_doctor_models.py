"""`fuseprompt doctor MODEL...`: what it says of models that can and cannot be loaded."""

import json
from pathlib import Path

import pytest

from fuseprompt.cli.doctor_models import examine_model
from fuseprompt.cli.main import main
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
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember no tokenizer from elsewhere."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "own"))


def test_it_tells_kind_labels_and_what_is_unusual(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(save_folder(tmp_path / "tones", classifier_module(), bert_tokenizer()))
    assert main(["doctor", folder]) == 0
    first, *notes = capsys.readouterr().out.splitlines()
    facts = examine_model(folder)
    assert first.startswith(f"{folder}: classifier of {', '.join(facts.labels)}, {facts.tokens:,} ")
    assert [line.strip() for line in notes] == list(facts.notes)
    assert any("blank" in note for note in notes)  # Word pieces have no leading blank.


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


def test_quiet_prints_only_what_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = str(save_folder(tmp_path / "writer", gpt2_module(), gpt2_tokenizer()))
    nothing = str(tmp_path / "nothing")
    assert main(["doctor", "--quiet", writer, nothing]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{nothing}: cannot be used")
    assert writer not in out
