"""Tell a person how far a long preparation is.

On a terminal there is one progress bar with the time left; elsewhere each step is one line; quiet
is silence. All of it goes to stderr. What the steps are is decided in
`fuseprompt.offline.prepare`, to be read next.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, final, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """What the preparation says while it works."""

    def say(self, text: str) -> None:
        """Print one line."""

    def start(self, text: str) -> None:
        """Begin the next step."""

    def advance(self, amount: float) -> None:
        """Report work done, in the unit of the total (estimated seconds)."""


@final
class SilentProgress:
    """Says nothing."""

    def say(self, text: str) -> None:
        """Print nothing."""

    def start(self, text: str) -> None:
        """Print nothing."""

    def advance(self, amount: float) -> None:
        """Print nothing."""


@final
class LineProgress:
    """One line per step, for logs and pipes."""

    def say(self, text: str) -> None:
        """Print one line."""
        print(text, file=sys.stderr, flush=True)

    def start(self, text: str) -> None:
        """Print the step's name."""
        self.say(f"prepare: {text}")

    def advance(self, amount: float) -> None:
        """Print nothing."""


@contextmanager
def open_progress(total: float, *, quiet: bool) -> Iterator[Progress]:
    """Open the progress display that fits stderr.

    Args:
        total: Expected work, in estimated seconds.
        quiet: Say nothing at all.

    Yields:
        The display; it is cleared at the end.
    """
    if quiet:
        yield SilentProgress()
        return
    if not sys.stderr.isatty():
        yield LineProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichBar

    bar = RichBar(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("prepare", total=total)

    @final
    class BarProgress:
        def say(self, text: str) -> None:
            bar.console.print(text, highlight=False, markup=False)

        def start(self, text: str) -> None:
            bar.update(task, description=text)

        def advance(self, amount: float) -> None:
            bar.advance(task, amount)

    with bar:
        yield BarProgress()
