"""A revision changes with the weights and with nothing else."""

from pathlib import Path

import pytest

from fuseprompt.errors import MissingModelError, ModelError
from fuseprompt.models import revision
from fuseprompt.models.revision import revision_of


def test_a_folder_is_known_by_its_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
    first = revision_of(str(tmp_path / "a"))
    assert len(first) == 64
    assert revision_of(str(tmp_path / "b")) == first
    (tmp_path / "b" / "model.safetensors").write_bytes(b"weightz")
    assert revision_of(str(tmp_path / "b")) != first


def test_a_gguf_file_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"1")
    first = revision_of(str(tmp_path / "x.gguf"))
    (tmp_path / "x.gguf").write_bytes(b"2")
    assert revision_of(str(tmp_path / "x.gguf")) != first


def test_a_model_of_the_hub_is_known_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (Path("/cache/models--a--b/snapshots/0123abc/config.json"), True)
    monkeypatch.setattr(revision, "find_config", lambda name, local_only: found)
    assert revision_of("a/b") == "0123abc"


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    with pytest.raises(MissingModelError, match="fuseprompt prepare"):
        revision_of("offline:lm")
    with pytest.raises(ModelError, match=r"no config.json"):
        revision_of(str(tmp_path))


@pytest.mark.offline
def test_the_offline_models_have_revisions() -> None:
    names = ("offline:lm", "offline:image-text", "offline:sentiment")
    assert len({revision_of(name) for name in names}) == 3
