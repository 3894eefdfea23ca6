"""The bar on a terminal: what is printed around it stays, and nothing else is left behind."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest
from rich.console import Console

from fuseprompt.cli import bar
from fuseprompt.search.engine import Progress


def screen(written: str) -> list[str]:
    """Return the lines that a terminal would show, by the few controls that rich uses."""
    lines, row, column = [""], 0, 0
    i = 0
    while i < len(written):
        char = written[i]
        i += 1
        if char == "\x1b":
            end = next(j for j in range(i, len(written)) if written[j].isalpha())
            code, kind = written[i + 1 : end], written[end]
            i = end + 1
            if kind == "A":
                row = max(row - int(code or 1), 0)
            elif kind == "K":
                lines[row] = ""
        elif char == "\r":
            column = 0
        elif char == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            lines[row] = lines[row][:column].ljust(column) + char + lines[row][column + 1 :]
            column += 1
    return lines


def test_the_screen_of_this_test_knows_the_controls() -> None:
    assert screen("one\ntwo\r\x1b[2K\x1b[1A\x1b[2Kthree\x1b[31m!") == ["three!", ""]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return a terminal that stdout and stderr share."""
    shared = io.StringIO()
    console = Console(file=shared, force_terminal=True, width=80, height=20)
    monkeypatch.setattr(bar, "Console", lambda stderr: console)
    return shared


@contextmanager
def shared_by(terminal: io.StringIO) -> Iterator[None]:
    with redirect_stdout(terminal), redirect_stderr(terminal):
        yield


def test_results_and_errors_stay_on_the_screen(terminal: io.StringIO) -> None:
    with shared_by(terminal), bar.Bar(2, quiet=False) as shown:
        shown.on_step(Progress(1, 4, ("An image of [a] cat",)))
        shown.say("a.png\n  An image of a cat.\n  loss 1.0")
        shown.count_image()
        shown.tell("error: b.png: no such file.")
        shown.on_making("word table", 3, 10)
        shown.say("c.png\n  An image of [red] paint.\n  loss 2.0")
    lines = [line.rstrip() for line in screen(terminal.getvalue())]
    assert lines == [
        "a.png",
        "  An image of a cat.",
        "  loss 1.0",
        "error: b.png: no such file.",
        "Making the word table (once, 10 entries) ...",
        "c.png",
        "  An image of [red] paint.",
        "  loss 2.0",
        "",
        *[""] * (len(lines) - 9),
    ]
    assert "An image of [a] cat" in terminal.getvalue()


def test_quiet_shows_nothing_but_what_is_said(terminal: io.StringIO) -> None:
    with shared_by(terminal), bar.Bar(2, quiet=True) as shown:
        shown.on_step(Progress(1, 4, ("An image",)))
        shown.on_making("word table", 3, 10)
        shown.say("result")
    assert terminal.getvalue() == "result\n"


def test_without_a_terminal_only_lines_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with bar.Bar(1, quiet=False) as shown:
        shown.on_step(Progress(1, 4, ("An image",)))
        shown.on_making("word table", 3, 10)
        shown.on_making("word table", 10, 10)
        shown.say("result")
    printed = capsys.readouterr()
    assert printed.out == "result\n"
    assert printed.err == "Making the word table (once, 10 entries) ...\n"


def test_a_pace_is_shown_beside_the_count(terminal: io.StringIO) -> None:
    with shared_by(terminal), bar.Bar(0, quiet=False, what="captions") as shown:
        shown.show(3, 12, "340 an hour")
    assert "3/12" in terminal.getvalue()
    assert "340 an hour" in terminal.getvalue()
