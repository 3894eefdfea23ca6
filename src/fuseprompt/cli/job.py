"""What the commands of jobs share: their output options, and how results are printed and kept."""

import csv
import importlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from fuseprompt.cli.bar import Bar
from fuseprompt.cli.options import Output
from fuseprompt.errors import FuseError, UsageError
from fuseprompt.tasks.kinds import File, Name

if TYPE_CHECKING:
    from fuseprompt.search.minimize import Progress, Result
    from fuseprompt.search.tracking import Tracking


@dataclass(frozen=True)
class JobOutput(Output):
    """Output of a job.

    Attributes:
        out: File that gets the results too.
        format: Form of that file, JSON lines or a table.
        page: HTML page of all results, which stands alone.
        track: Project of trackio that gets losses by step and the results; a name that ends in
            .jsonl is a file that gets them.
    """

    out: File | None = None
    format: Literal["jsonl", "csv"] = "jsonl"
    page: File | None = None
    track: Name | None = None


@final
@dataclass(frozen=True)
class Shown:
    """A result, or an error, as JSON, for a terminal and as a card of the page.

    Attributes:
        record: Keys of the JSON object.
        text: What a person reads; nothing for an error.
        card: HTML of the page.
        note: A line on stderr, such as an error.
        failed: Whether the exit code says so.
        last: Whether it is the last one of its item.
    """

    record: Mapping[str, Any]
    text: str = ""
    card: str = ""
    note: str = ""
    failed: bool = False
    last: bool = True


def show_failure(item: str, error: str, key: str) -> Shown:
    """Return an item that got no result; `key` is what its kind is called in JSON."""
    card = f"<h2>{escape(item)}</h2><p class=error>{escape(error)}</p>"
    return Shown({key: item, "error": error}, "", card, f"error: {error}", failed=True)


def record(result: "Result") -> dict[str, Any]:
    """Return the keys that the JSON objects of all jobs have."""
    return {
        "text": result.text,
        "loss": round(result.loss, 6),
        "terms": {k: round(v, 6) for k, v in result.terms.items()},
        "settings": dict(result.settings),
        "versions": dict(result.versions),
        "seed": result.seed,
        "seconds": round(result.seconds, 3),
    }


def show_each(results: Iterable[Any], key: str, show: Callable[[Any], Shown]) -> Iterator[Shown]:
    """Yield results and failures as they are printed and put on pages, in order."""
    from fuseprompt.tasks.job import Failure

    for one in results:
        yield show_failure(one.item, one.error, key) if isinstance(one, Failure) else show(one)


class Report(AbstractContextManager["Report"]):
    """Prints results as they come, keeps them in the files asked for, and shows what goes on.

    Args:
        output: Where results go.
        total: Number of items, for the bar.
        what: What the items are called there.
        title: Title of the page.
    """

    def __init__(self, output: JobOutput, total: int, what: str, title: str = "") -> None:
        self._output, self._title, self._cards = output, title, list[str]()
        self.bar = Bar(total, what, quiet=output.quiet or output.json)
        self._stack = ExitStack()
        self._files = {
            option: self._stack.enter_context(_OutFile(option, path))
            for option, path in (("--out", output.out), ("--page", output.page))
            if path is not None
        }
        self._table = _Table() if output.format == "csv" else None
        self._tracking: Tracking | None = None
        if output.track is not None:
            self._tracking = self._stack.enter_context(_tracked(output.track, title))
            if not output.track.endswith(".jsonl"):
                output.note(f"to see the searches: trackio show --project {output.track!r}")
        self._num_done = 0
        self._last: Progress | None = None

    def __enter__(self) -> "Report":
        """Show the bar."""
        self._stack.enter_context(self.bar)
        return self

    def __exit__(self, *_: object) -> None:
        """Write the page of what there is, and take the bar away."""
        with self._stack:
            self._keep("" if self._table is None else self._table.rest())
            if "--page" in self._files:
                from fuseprompt.evaluation.page import render_page

                page = {"title": self._title, "style": "job.css", "cards": self._cards}
                self._files["--page"].write(render_page("job.html", **page))

    def on_step(self, step: "Progress") -> None:
        """Remember the best texts so far, and show them; ids are "NUMBER:ITEM"."""
        self._last = step
        self.bar.on_step(step)
        if self._tracking is not None:
            self._tracking.on_step(step)

    def print_all(self, results: Iterable[Shown]) -> int:
        """Print each result when it comes; return the exit code."""
        code = 0
        try:
            for one in results:
                code |= one.failed
                if one.note and not (self._output.quiet and "error" not in one.record):
                    self.bar.log(one.note)
                self._print(one)
                if one.last:
                    self._num_done += 1
                    self.bar.advance()
        except KeyboardInterrupt:
            self._log_unfinished()
            raise
        return code

    def _print(self, one: Shown) -> None:
        line = _as_lines(one.record)
        self._cards.append(one.card)
        if self._tracking is not None:
            self._tracking.add(one.record)
        try:
            if shown := line if self._output.json else one.text:
                self.bar.result(shown)
        finally:  # Where one of the two is full, the other still gets the result.
            self._keep(line if self._table is None else self._table.add(one.record))

    def _keep(self, lines: str) -> None:
        if lines and "--out" in self._files:
            self._files["--out"].write(lines)

    def _log_unfinished(self) -> None:
        """Log the best texts of items whose search was cut off; they are no results."""
        if self._last is None:
            return
        for problem, text in zip(self._last.ids, self._last.texts, strict=True):
            number, _, item = problem.partition(":")
            if int(number) >= self._num_done:
                at = f"after {self._last.step} of {self._last.steps} steps"
                self.bar.log(f"not finished, best {at}: {item}\n  {text}")


@contextmanager
def _tracked(project: str, title: str) -> "Iterator[Tracking]":
    """Begin a run of trackio, or a file, and end it; what trackio prints is no result."""
    from fuseprompt.search.tracking import JsonLines, Tracker, Tracking

    tracker: Tracker = JsonLines()
    if not project.endswith(".jsonl"):
        try:
            tracker = importlib.import_module("trackio")
        except ImportError:
            raise FuseError(
                f"--track {project}: trackio is missing. pip install 'fuseprompt[track]', or name "
                "a file that ends in .jsonl."
            ) from None
    try:
        with redirect_stdout(io.StringIO()):
            tracking = Tracking(tracker, project, config={"job": title})
    except ValueError as error:
        raise UsageError(f"--track {project}: {error}") from None
    try:
        yield tracking
    finally:
        with redirect_stdout(io.StringIO()):
            tracking.close()


def _as_lines(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


class _Table:
    """Records as rows of CSV; the first result has the columns, so errors before it wait for it."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._waiting: list[Mapping[str, Any]] = []

    def add(self, record: Mapping[str, Any]) -> str:
        """Return the rows that can be written now."""
        self._waiting.append(record)
        return "" if "error" in record and not self._columns else self.rest()

    def rest(self) -> str:
        """Return the rows that wait."""
        rows, self._waiting = self._waiting, []
        is_new = bool(rows) and not self._columns
        if is_new:
            self._columns = [*(key for key in rows[-1] if key != "error"), "error"]
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
        return str(text.getvalue().removesuffix("\n"))


def _cell(value: Any) -> Any:
    """Return a value as a cell: a number or text as it is, anything else as JSON."""
    return value if isinstance(value, str | int | float) else json.dumps(value, ensure_ascii=False)


class _OutFile(AbstractContextManager["_OutFile"]):
    """A file of an option, opened before any work is done; it gets whole lines or nothing."""

    def __init__(self, option: str, path: Path) -> None:
        self._name, self._size = f"{option} {path}", 0
        with self._explained():
            self._file = path.open("wb", buffering=0)

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()

    def write(self, line: str) -> None:
        """Write a line; a `FuseError` if the disk is full, say."""
        # File names that are no UTF-8 reach us as lone surrogates; escaped, they are valid JSON.
        data, written = f"{line}\n".encode(errors="backslashreplace"), 0
        with self._explained():
            try:
                while written < len(data):
                    written += self._file.write(data[written:])
            except OSError:
                with suppress(OSError):
                    self._file.truncate(self._size)
                raise
        self._size += written

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            safe = " The results before are safe in it." if self._size else ""
            reason = f"cannot be written ({error.strerror})"
            raise FuseError(
                f"{self._name}: {reason}.{safe} Make room, or choose another file."
            ) from None
