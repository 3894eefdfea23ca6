"""Java is found or said to be missing, and its faults become sentences."""

from pathlib import Path

import pytest

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics import java as module
from fuseprompt.evaluation.metrics.base import Unavailable
from fuseprompt.evaluation.metrics.java import Java, find_java, free_heap, run_java
from tests.evaluation.metrics.tools import fake_java


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "home", "", version="11.0.2")
    fake_java(tmp_path / "other", "", version="17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"), prepend=":")
    assert find_java() == Java(tmp_path / "home" / "bin" / "java", "11.0.2")
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == Java(tmp_path / "other" / "bin" / "java", "17")


def test_without_java_the_message_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_java()
    assert isinstance(found, Unavailable)
    assert "apt install default-jre-headless" in found.reason


def test_a_java_that_does_not_run_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin" / "java"
    broken.write_text("#!/bin/sh\necho 'Error: could not find libjava.so' >&2\nexit 2\n")
    broken.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = find_java()
    assert isinstance(found, Unavailable)
    assert "could not find libjava.so" in found.reason


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("1.8.0_292", 8), ("21", 21), ("9-internal", 9), ("unknown", 0)],
)
def test_the_major_version(version: str, major: int) -> None:
    assert Java(Path("java"), version).major == major


def test_locale_and_encoding_are_fixed_and_the_folder_is_the_programs(tmp_path: Path) -> None:
    java = fake_java(tmp_path, 'pwd; echo "$@"')
    place, arguments = run_java(
        java, ["-jar", Path("a b.jar")], folder=tmp_path, timeout=10.0, heap=300
    ).splitlines()
    assert Path(place) == tmp_path.resolve()
    assert arguments.startswith("-Xmx300m -Duser.language=en -Duser.country=US ")
    assert " -Dfile.encoding=UTF-8 " in arguments
    assert arguments.endswith("-jar a b.jar")


@pytest.mark.parametrize(("given", "used"), [("C", "C.UTF-8"), ("de_DE.UTF-8",) * 2])
def test_the_locale_c_does_not_hide_paths(
    given: str, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", given)
    java = fake_java(tmp_path, 'echo "$LC_ALL"')
    assert run_java(java, [], folder=tmp_path, timeout=10.0, heap=300) == f"{used}\n"


def test_a_fault_is_told_in_the_programs_own_words(tmp_path: Path) -> None:
    java = fake_java(
        tmp_path,
        'printf \'Picked up JAVA_TOOL_OPTIONS: -Dx\\nException in thread "main" '
        "java.lang.OutOfMemoryError: heap\\n\\tat a.B.c(D.java:1)\\n' >&2; exit 1",
    )
    with pytest.raises(MetricError, match=r"exit code 1\): .*OutOfMemoryError: heap$"):
        run_java(java, [], folder=tmp_path, timeout=10.0, heap=300)


def test_a_program_that_is_killed_or_does_not_end_is_told(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match="killed by signal 9; out of memory"):
        run_java(fake_java(tmp_path, "kill -9 $$"), [], folder=tmp_path, timeout=10.0, heap=300)
    with pytest.raises(MetricError, match="stopped after 0 s"):
        run_java(fake_java(tmp_path, "exec sleep 20"), [], folder=tmp_path, timeout=0.2, heap=300)
    with pytest.raises(MetricError, match="cannot be started"):
        run_java(Java(tmp_path / "none"), [], folder=tmp_path, timeout=10.0, heap=300)


def test_the_heap_fits_into_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Told:
        def __init__(self, _path: str) -> None: ...

        def read_text(self, **_options: str) -> str:
            return "MemTotal: 9 kB\nMemAvailable:  4096000 kB\n"

    monkeypatch.setattr(module, "Path", Told)
    assert free_heap(8192) == 3000
    assert free_heap(1024) == 1024
    monkeypatch.setattr(Told, "read_text", lambda *_a, **_k: "nothing")
    assert free_heap(8192) == 8192
