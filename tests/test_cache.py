"""Notes are found again, by the whole of their key, and never stand in the way."""

import json
import os
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fuseprompt import cache
from fuseprompt.cache import read_note, write_atomically, write_note
from fuseprompt.errors import FuseWarning


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


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of somebody else's, whose files may be read; the administrator may write anywhere."""
    shared = tmp_path / "shared"
    (shared / "word-tables").mkdir(parents=True)
    (shared / "word-tables" / "a").write_text("table")
    (shared / "word-tables" / "closed").write_text("table")

    def access(path: Path, mode: int) -> bool:
        is_theirs = Path(path).is_relative_to(shared)
        is_readable = os.path.exists(path) and Path(path).name != "closed"
        return not is_theirs or (mode == os.R_OK and is_readable)

    def exists(path: Path) -> bool:  # As Path's own does where a folder is closed.
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(Path, "exists", exists)
    monkeypatch.setattr(cache, "notes_dir", lambda: cache.cache_dir() / "notes")
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(shared))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cache._private_dir.cache_clear()
    return shared


def test_in_a_cache_of_somebody_else_what_is_there_is_read(others: Path) -> None:
    """What may not be read, or is not there, has its place in the home; that is said once."""
    assert cache.usable(others / "word-tables" / "a") == others / "word-tables" / "a"
    own = others.parent / "home" / ".cache" / "fuseprompt"
    with pytest.warns(FuseWarning, match=r"shared may not be written to .*set FUSEPROMPT_CACHE to"):
        assert cache.usable(others / "word-tables" / "b") == own / "word-tables" / "b"
    assert cache.usable(others / "word-tables" / "closed") == own / "word-tables" / "closed"
    assert cache.usable(Path("/elsewhere/b")) == Path("/elsewhere/b")
    assert write_note("check", "a", {"share": 0.5})
    assert read_note("check", "a") == {"share": 0.5}
    assert not os.path.exists(others / "notes")


@pytest.mark.parametrize("home", ["none", "closed", "~nobody-of-this-name/cache"])
def test_without_a_home_a_private_folder_is_used(
    home: str, others: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    own = temporary / f"fuseprompt-{os.getuid()}"
    monkeypatch.setattr(cache.Path, "home", classmethod(_no_home))
    monkeypatch.delenv("FUSEPROMPT_CACHE")
    if home == "closed":
        monkeypatch.setattr(cache.Path, "home", lambda: others / "home")
        find = partial(cache.usable, others / "home/.cache/fuseprompt/notes")
    else:
        monkeypatch.setenv("FUSEPROMPT_CACHE", "" if home == "none" else home)
        find = lambda: cache.cache_dir() / "notes"  # noqa: E731
    with pytest.warns(FuseWarning, match=rf"using {own} instead; set FUSEPROMPT_CACHE"):
        assert find() == own / "notes"
    assert own.stat().st_mode & 0o777 == 0o700


def _no_home(_: object) -> None:
    raise RuntimeError("Could not determine home directory.")


def test_a_private_folder_that_somebody_else_has_made_is_not_used(
    others: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could write into it; under another user's number the folder is that of somebody else."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cache.Path, "home", classmethod(_no_home))
    user = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: user)
    with pytest.warns(FuseWarning, match="instead"):
        own = cache.usable(others / "b")
    assert own.parent.parent == tmp_path
    assert own.parent.name.startswith("fuseprompt-")
    assert own.parent.name != f"fuseprompt-{user}"


@pytest.mark.parametrize("writer", [save_file, torch.save])
def test_what_another_writer_makes_may_be_read_by_all_who_may_read_files(
    tmp_path: Path, writer
) -> None:
    """Safetensors makes files for their owner alone; a second user would make them again."""
    usual, made = tmp_path / "usual", tmp_path / "made"
    usual.write_text("")
    write_atomically(made, lambda path: writer({"a": torch.zeros(2)}, path))
    assert made.stat().st_mode == usual.stat().st_mode


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/three")
    assert cache.cache_dir() == Path("/three/.cache/fuseprompt")
