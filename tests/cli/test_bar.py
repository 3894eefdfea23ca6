"""The bar on a terminal: what is printed around it stays, and nothing else is left behind."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from fuseprompt.cli.bar import Bar
from fuseprompt.search.minimize import Progress


def screen(written: str) -> list[str]:
    """Return the lines that a terminal would show, by the few controls that a bar uses."""
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


class Terminal(io.StringIO):
    """A terminal that stdout and stderr share."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


@contextmanager
def shared_by(terminal: Terminal) -> Iterator[None]:
    with redirect_stdout(terminal), redirect_stderr(terminal):
        yield


def test_results_and_errors_stay_on_the_screen(terminal: Terminal) -> None:
    with shared_by(terminal), Bar(2) as shown:
        shown.on_step(Progress(1, 4, ("An image of [a] cat",)))
        shown.result("a.png\n  An image of a cat.\n  loss 1.0")
        shown.advance()
        shown.log("error: b.png: no such file.")
        shown.make("word table", 3, 10)
        shown.result("c.png\n  An image of [red] paint.\n  loss 2.0")
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
    ]
    assert "images 0/2 | An image of [a] cat 1/4 | 0 s left" in terminal.getvalue()
    assert "images 1/2 | word table 3/10 | 0 s left" in terminal.getvalue()


def test_the_line_is_never_wider_than_the_screen(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    with shared_by(terminal), Bar(2, "captions") as shown:
        shown.show("x" * 100, 1, 2)
        assert screen(terminal.getvalue()) == [f"captions 0/2 | {'x' * 14}"]


def test_quiet_shows_nothing_but_what_is_said(terminal: Terminal) -> None:
    with shared_by(terminal), Bar(2, quiet=True) as shown:
        shown.on_step(Progress(1, 4, ("An image",)))
        shown.make("word table", 3, 10)
        shown.note("something")
        shown.result("result")
    assert terminal.getvalue() == "result\n"


def test_without_a_terminal_only_lines_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar(1) as shown:
        shown.on_step(Progress(1, 4, ("An image",)))
        shown.make("word table", 3, 10)
        shown.make("word table", 10, 10)
        shown.result("result")
    printed = capsys.readouterr()
    assert printed.out == "result\n"
    assert printed.err == "Making the word table (once, 10 entries) ...\n"
