"""The offline word tables: ready only if it was made from the models as they are now."""

import json
from pathlib import Path

import pytest

from fuseprompt.errors import ModelError
from fuseprompt.models import hub
from fuseprompt.models.image_text import TwoTowerModel
from fuseprompt.offline import manifest
from fuseprompt.tasks import tables
from fuseprompt.text.tokenizer import Tokenizer
from tests.tiny import classifier, clip, gpt2, sentence_encoder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of tables, of tiny models in place of the offline ones."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    models = {
        "offline:lm": gpt2(),
        "offline:image-text": TwoTowerModel(
            sentence_encoder(), clip().image_features, name="tiny-two-towers"
        ),
        "offline:sentiment": classifier(),
    }
    monkeypatch.setattr(hub, "load", models.__getitem__)
    monkeypatch.setattr(manifest, "offline_folder", lambda name: tmp_path)
    monkeypatch.setattr(Tokenizer, "from_pretrained", lambda path: gpt2().tokenizer)
    return tmp_path / "word-tables"


def test_a_table_is_made_once_and_then_ready(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    for name in tables.SECONDARIES:
        assert tables.find_table(name) is None
        tables.make(name, on_progress=lambda done, total: calls.append((done, total)))
        file = tables.find_table(name)
        assert file is not None
        assert file.parent == folder
        assert file.stat().st_size > 0
    assert calls
    assert calls[-1][0] == calls[-1][1]
    assert tables.find_table("image-text") != tables.find_table("sentiment")
    calls.clear()
    for name in tables.SECONDARIES:
        tables.make(name, on_progress=lambda done, total: calls.append((done, total)))
    assert calls == []


def test_a_language_model_has_no_table(folder: Path) -> None:
    with pytest.raises(ModelError, match="offline:lm: expected one of image-text, sentiment"):
        tables.make("lm")


@pytest.mark.parametrize("fault", ["other models", "no table", "zeros", "damaged note"])
@pytest.mark.parametrize("name", tables.SECONDARIES)
def test_it_is_not_ready_after_a_change(folder: Path, fault: str, name: str) -> None:
    tables.make(name)
    (note,) = folder.glob("*.json")
    (table,) = folder.glob("*.safetensors")
    if fault == "other models":
        note.write_text(json.dumps({**json.loads(note.read_text()), "digest": "of others"}))
    elif fault == "no table":
        table.unlink()
    elif fault == "zeros":
        table.write_bytes(table.read_bytes()[:-8] + bytes(8))
    else:
        note.write_text("[1, 2")
    assert tables.find_table(name) is None
    tables.make(name)
    assert tables.find_table(name) is not None
