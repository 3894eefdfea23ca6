"""The offline word table: ready only if it was made from the models as they are now."""

import json
from pathlib import Path

import pytest

from fuseprompt.models import hub, offline
from fuseprompt.models.image_text import TwoTowerModel
from fuseprompt.tasks import tables
from fuseprompt.text.tokenizer import Tokenizer
from tests.tiny import clip, gpt2, sentence_encoder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of tables, of tiny models in place of the offline ones."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    two = TwoTowerModel(sentence_encoder(), clip(), name="tiny-two-towers")
    monkeypatch.setattr(hub, "load", lambda name: two)
    monkeypatch.setattr(offline, "offline_folder", lambda name: tmp_path)
    monkeypatch.setattr(Tokenizer, "from_pretrained", lambda path: gpt2().tokenizer)
    return tmp_path / "word-tables"


def test_it_is_made_once_and_then_ready(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    assert not tables.is_ready()
    tables.make(on_progress=lambda done, total: calls.append((done, total)))
    assert tables.is_ready()
    assert calls
    assert calls[-1][0] == calls[-1][1]
    calls.clear()
    tables.make(on_progress=lambda done, total: calls.append((done, total)))
    assert calls == []


@pytest.mark.parametrize("fault", ["other models", "no table", "damaged note"])
def test_it_is_not_ready_after_a_change(folder: Path, fault: str) -> None:
    tables.make()
    (note,) = folder.glob("*.json")
    (table,) = folder.glob("*.safetensors")
    if fault == "other models":
        note.write_text(json.dumps({**json.loads(note.read_text()), "digest": "of others"}))
    elif fault == "no table":
        table.unlink()
    else:
        note.write_text("[1, 2")
    assert not tables.is_ready()
    tables.make()
    assert tables.is_ready()
