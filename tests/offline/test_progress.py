"""The progress display: lines where stderr is no terminal, a bar where it is, silence on demand."""

import io
import sys

import pytest

from fuseprompt.offline.progress import open_progress


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_one_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    with open_progress(2.0, quiet=False) as progress:
        progress.say("hello")
        progress.start("convert lm")
        progress.advance(1.0)
    assert capsys.readouterr().err == "hello\nprepare: convert lm\n"


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with open_progress(2.0, quiet=True) as progress:
        progress.say("hello")
        progress.start("convert lm")
        progress.advance(1.0)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_with_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with open_progress(2.0, quiet=False) as progress:
        progress.say("[hello]")
        progress.start("convert lm")
        progress.advance(1.0)
    assert "[hello]" in terminal.getvalue()
    assert "convert lm" in terminal.getvalue()
    assert "50%" in terminal.getvalue()
