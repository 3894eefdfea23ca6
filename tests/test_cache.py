"""Notes are found again, by the whole of their key, and never stand in the way."""

import json
import os
from pathlib import Path

import pytest

from fuseprompt import cache
from fuseprompt.cache import read_note, write_atomically, write_note


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "notes_dir", lambda: tmp_path / "notes")
    return tmp_path / "notes"


def test_a_note_is_found_by_its_kind_and_key() -> None:
    assert read_note("check", "a") is None
    assert write_note("check", "a", {"share": 0.5})
    assert write_note("check", "b", {"share": 1.0})
    assert read_note("check", "a") == {"share": 0.5}
    assert read_note("check", "b") == {"share": 1.0}
    assert read_note("other", "a") is None
    assert write_note("check", "a", {"share": 0.25})
    assert read_note("check", "a") == {"share": 0.25}


def test_nothing_but_notes_is_left_in_the_folder(folder: Path) -> None:
    for share in range(3):
        write_note("check", "a", {"share": share})
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", '"text"', '{"key": "of others", "note": {}}'])
def test_what_is_no_note_of_this_key_is_none(folder: Path, text: str) -> None:
    write_note("check", "a", {"share": 0.5})
    (file,) = folder.iterdir()
    file.write_text(text)
    assert read_note("check", "a") is None
    file.write_bytes(b"\xff\x00")
    assert read_note("check", "a") is None
    file.write_text(json.dumps({"key": "a", "note": [1]}))
    assert read_note("check", "a") is None


def test_a_folder_that_cannot_be_written_is_no_error(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    assert not write_note("check", "a", {"share": 0.5})
    assert read_note("check", "a") is None


def test_a_note_that_cannot_be_put_in_place_leaves_no_rubbish(folder: Path) -> None:
    write_note("check", "a", {"share": 0.5})
    (file,) = folder.iterdir()
    file.unlink()
    file.mkdir()
    (file / "full").write_text("")
    assert not write_note("check", "a", {"share": 0.5})
    assert list(folder.iterdir()) == [file]


def test_notes_lie_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "own"))
    assert cache.cache_dir() == tmp_path / "own"


@pytest.mark.parametrize(
    "content", [b"new", "new", lambda path: path.write_text("new")], ids=["bytes", "text", "writer"]
)
def test_a_file_is_written_whole(tmp_path: Path, content) -> None:
    file = tmp_path / "deep" / "file.txt"
    write_atomically(file, content)
    write_atomically(file, content)
    assert file.read_text() == "new"
    assert list(file.parent.iterdir()) == [file]


def test_a_writer_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    file = tmp_path / "file.txt"
    write_atomically(file, "old")
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, fail)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_the_content_is_on_the_disk_before_the_file_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file.txt"
    write_atomically(file, "old")
    seen: list[tuple[bytes, str]] = []

    def look(descriptor: int) -> None:
        seen.append((os.pread(descriptor, 10, 0), file.read_text()))

    monkeypatch.setattr(os, "fsync", look)
    write_atomically(file, "new")
    write_atomically(file, lambda path: path.write_text("newer"))
    assert seen == [(b"new", "old"), (b"newer", "new")]
    assert file.read_text() == "newer"


def test_a_file_that_does_not_reach_the_disk_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    file = tmp_path / "file.txt"
    write_atomically(file, "old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_gets_the_usual_rights_and_may_have_a_long_name(tmp_path: Path) -> None:
    usual, long = tmp_path / "usual", tmp_path / ("ä" * 120)
    usual.write_text("")
    write_atomically(long, "")
    assert long.stat().st_mode == usual.stat().st_mode


def test_the_cache_folder_follows_the_three_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert cache.cache_dir() == Path("/one")
    monkeypatch.delenv("FUSEPROMPT_CACHE")
    assert cache.cache_dir() == Path("/two/fuseprompt")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/three")
    assert cache.cache_dir() == Path("/three/.cache/fuseprompt")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/three")
    assert cache.cache_dir() == Path("/three/.cache/fuseprompt")
