"""Progress with an estimate of the time left, on stderr, while a person is looking.

It prints results around the bar too, so that the two never mix. It knows no command.
"""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

# Named again for the commands: it belongs to a bar that nothing else writes into it.
from fuseprompt.models.hub import silence_libraries as silence_libraries
from fuseprompt.search.engine import Progress as SearchProgress


class Bar(AbstractContextManager["Bar"]):
    """Two lines: images done, and the work on the current ones.

    Args:
        num_images: Images in all.
        quiet: Say nothing but results and errors.
        what: What is counted, if not images.
    """

    def __init__(self, num_images: int, *, quiet: bool, what: str = "images") -> None:
        console = Console(stderr=True)
        self._shown = console.is_terminal and not quiet
        self._progress = _HidingProgress(
            # Texts are no markup: a caption may hold square brackets.
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not self._shown,
            transient=True,
        )
        self._images = self._progress.add_task(what, total=num_images)
        self._work = self._progress.add_task("loading models", total=None)
        self._told: set[str] = set()
        self._quiet = quiet

    def __enter__(self) -> "Bar":
        """Show the bar."""
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self._stop()

    def on_step(self, step: SearchProgress) -> None:
        """Show the step of the search and the best text so far."""
        text = step.texts[0][-50:] if step.texts else ""
        self._progress.update(
            self._work, total=step.steps, completed=step.step, description=text, refresh=True
        )

    def on_making(self, what: str, done: int, total: int) -> None:
        """Show how far a table is that is made once and kept."""
        if what not in self._told and not self._quiet:
            self._told.add(what)
            self.tell(f"Making the {what} (once, {total:,} entries) ...")
        self._progress.update(self._work, total=total, completed=done, description=what)

    def count_image(self) -> None:
        """Count an image, or whatever is counted, as done."""
        self._progress.advance(self._images)

    def show(self, done: int, total: int, text: str) -> None:
        """Show how many of all are done, and a remark about the work.

        Args:
            done: How many are done.
            total: How many there are.
            text: The remark, such as the pace.
        """
        self._progress.update(self._images, completed=done, total=total)
        self._progress.update(self._work, description=text, refresh=True)

    def tell(self, text: str) -> None:
        """Print a line on stderr, the bar staying below."""
        self._print(text, file_is_stderr=True)

    def say(self, text: str) -> None:
        """Print a result on stdout, the bar staying below."""
        self._print(text, file_is_stderr=False)

    def _print(self, text: str, *, file_is_stderr: bool) -> None:
        self._stop()
        print(text, file=sys.stderr if file_is_stderr else sys.stdout, flush=True)
        self._start()

    def _start(self) -> None:
        if self._shown:
            self._progress.is_hidden = False
            self._progress.start()

    def _stop(self) -> None:
        if self._shown:
            self._progress.is_hidden = True
            self._progress.stop()


class _HidingProgress(Progress):
    """A progress that can be stopped and started again.

    When it starts again it clears as many lines as it drew last, above the cursor: drawing one
    empty line before a stop keeps it from clearing what was printed since.
    """

    is_hidden = False

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return what is drawn."""
        return [Text("")] if self.is_hidden else super().get_renderables()
