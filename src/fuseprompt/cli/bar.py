"""Progress on stderr, one line while a person is looking, and all that is printed around it."""

import shutil
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuseprompt.search.minimize import Progress

_CLEAR = "\r\x1b[2K"


class Bar:
    """A line with what is done of `total` (0: not counted), the current work, and the time left."""

    def __init__(self, total: int = 0, what: str = "images", *, quiet: bool = False) -> None:
        self._total, self._what, self._quiet = total, what, quiet
        self._done = 0
        self._work: tuple[str, int, int] = ("", 0, 0)
        self._announced: set[str] = set()
        self._started = time.monotonic()
        self.is_shown = sys.stderr.isatty() and not quiet

    def __enter__(self) -> "Bar":
        """Show the bar."""
        self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self._clear()
        self.is_shown = False

    def on_step(self, step: "Progress") -> None:
        """Show the step of a search and the best text so far."""
        self.show(step.texts[0][-50:] if step.texts else "", step.step, step.steps)

    def make(self, what: str, done: int, total: int) -> None:
        """Show how far something is that is made once and kept; it is announced first."""
        if what not in self._announced:
            self._announced.add(what)
            self.note(f"Making the {what} (once, {total:,} entries) ...")
        self.show(what, done, total)

    def show(self, what: str, done: int, total: int) -> None:
        """Show the current work, and how far it is, if there is a total."""
        self._work = (what, done, total)
        self._draw()

    def advance(self) -> None:
        """Count an item as done."""
        self._done += 1
        self._draw()

    def note(self, text: str) -> None:
        """Print a line on stderr, unless quiet."""
        if not self._quiet:
            self.log(text)

    def log(self, text: str) -> None:
        """Print a line on stderr."""
        self._clear()
        print(text, file=sys.stderr, flush=True)
        self._draw()

    def result(self, text: str) -> None:
        """Print a result on stdout."""
        self._clear()
        print(text, flush=True)
        self._draw()

    def _clear(self) -> None:
        if self.is_shown:
            print(_CLEAR, end="", file=sys.stderr, flush=True)

    def _draw(self) -> None:
        if not self.is_shown:
            return
        what, done, total = self._work
        parts = [f"{self._what} {self._done}/{self._total}"] if self._total else []
        if what:
            parts.append(f"{what} {done:,}/{total:,}" if total else what)
        done, total = (self._done, self._total) if self._done else (done, total)
        if 0 < done < total:
            left = (time.monotonic() - self._started) / done * (total - done)
            parts.append(f"{describe_seconds(left)} left")
        line = " | ".join(parts)[: shutil.get_terminal_size().columns - 1]
        print(f"{_CLEAR}{line}", end="", file=sys.stderr, flush=True)


def describe_seconds(seconds: float) -> str:
    """Return a time as a person says it, such as "3 h 05 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60:,} h {minutes % 60:02} min"
