"""Searches in a tracker: the losses by term and the text of each step, and a table of results."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final, runtime_checkable

from fuseprompt.errors import ImageError
from fuseprompt.models.images import open_image

if TYPE_CHECKING:
    from fuseprompt.search.minimize import OnStep, Progress

_T = TypeVar("_T")

#: Longest side of a thumbnail, in pixels.
_LONGEST: Final = 160

#: Longest key of an item; dashboards make a heading of it.
_MOST_CHARACTERS: Final = 60


@runtime_checkable
class Tracker(Protocol):
    """What keeps and shows numbers: trackio, wandb, or an object of your own.

    Where it has `Table(columns=, data=)` and `Image(picture)`, results are such a table.
    """

    def init(self, *, project: str, config: dict[str, Any]) -> object:
        """Begin a run."""

    def log(self, data: dict[str, Any], /) -> object:
        """Keep values of a step."""

    def finish(self) -> object:
        """End the run."""


@final
class JsonLines:
    """A tracker without a service: the project is a file, each line of it what was logged."""

    def init(self, *, project: str, config: dict[str, Any]) -> None:
        """Begin a run, behind those that the file has."""
        self._file = Path(project)
        self.log({"config": config})

    def log(self, data: dict[str, Any], /) -> None:
        """Write a line."""
        with self._file.open("a", encoding="utf-8", errors="backslashreplace") as file:
            print(json.dumps(data, ensure_ascii=False), file=file)

    def finish(self) -> None:
        """Leave the file as it is."""


@final
class Tracking(AbstractContextManager["Tracking"]):
    """A run of a tracker, which ends with a table of the results, a search that was stopped or not.

    Args:
        tracker: Anything with `init`, `log` and `finish`; nothing else is asked of it.
        project: Name of the project there.
        config: What the tracker shows beside the run.
        on_step: Called as well; a search ends when it returns True.

    Example:
        with Tracking(trackio, "photos") as tracking:
            captions = list(tracking.keep(caption("photos", on_step=tracking.on_step)))
    """

    def __init__(
        self,
        tracker: Tracker,
        project: str,
        *,
        config: Mapping[str, Any] | None = None,
        on_step: "OnStep | None" = None,
    ) -> None:
        self._tracker, self._also = tracker, on_step
        self._rows = list[dict[str, Any]]()
        tracker.init(project=project, config=dict(config or {}))

    def __exit__(self, *_: object) -> None:
        """End the run."""
        self.close()

    def close(self) -> None:
        """Log the table and end the run."""
        try:
            if self._rows:
                self._tracker.log({"results": self._table()})
        finally:
            self._tracker.finish()

    def on_step(self, step: "Progress") -> bool | None:
        """Log the exact losses of the best texts so far, which takes a pass of every model."""
        values: dict[str, Any] = {"search_step": step.step}
        for item, text, exact in zip(step.ids, step.texts, step.evaluations, strict=True):
            key = item.replace("/", "_")[:_MOST_CHARACTERS]
            losses = {"loss": exact.loss, **exact.terms}
            values |= {f"{key}/{name}": value for name, value in losses.items()}
            values[f"{key}/text"] = text
        self._tracker.log(values)
        return None if self._also is None else self._also(step)

    def keep(self, results: Iterable[_T]) -> Iterator[_T]:
        """Yield results of `minimize` or of a job; each becomes a row of the table."""
        for one in results:
            found: Any = getattr(one, "result", one)
            if hasattr(found, "problem"):  # A failure has none.
                row = {"item": found.problem.id, "image": found.problem.targets.get("image")}
                self.add({**row, "text": found.text, "loss": found.loss, "terms": found.terms})
            yield one

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row: its numbers, texts and terms, and the picture under "image", if any."""
        flat = {**row, **{f"terms.{k}": v for k, v in row.get("terms", {}).items()}}
        plain = {k: v for k, v in flat.items() if isinstance(v, str | int | float)}
        picture: Any = row.get("image")
        if hasattr(self._tracker, "Image"):
            with suppress(ImageError):  # Other jobs have none, and a bad one is in the row's error.
                small = open_image(picture[0] if isinstance(picture, list) else picture)
                small.thumbnail((_LONGEST, _LONGEST))
                plain["picture"] = self._tracker.Image(small)
        self._rows.append(plain)

    def _table(self) -> Any:
        if not hasattr(self._tracker, "Table"):
            return self._rows
        columns = list(dict.fromkeys(name for row in self._rows for name in row))
        data = [[row.get(name) for name in columns] for row in self._rows]
        return self._tracker.Table(columns=columns, data=data)
