"""Captions to be scored, from files; shards are joined: a mean over shards is another number."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.datasets.base import Item
from fuseprompt.evaluation.datasets.files import (
    Record,
    as_record,
    as_records,
    json_lines,
    last_part,
    read_json,
    short,
)

#: Fields of the caption, best first, and of the image.
_CAPTION: Final = ("prediction", "caption", "text")
_NAME: Final = ("image_id", "id", "image", "image_name", "file_name")
_NAMED: Final = 5  # Most ids that a message names.


@final
@dataclass(frozen=True)
class Prediction:
    """One caption of a file, unchanged."""

    place: str  # In the file, for messages.
    names: tuple[str, ...]  # Ids and file names of its image; the first known one counts.
    caption: str
    sentiment: str = ""


def read_predictions(files: Sequence[Path], *, field: str | None = None) -> list[Prediction]:
    """Return the captions of files (runs' folders, JSON lines, JSON) that are parts of one set."""
    fields = _CAPTION if field is None else (field,)
    found: list[Prediction] = []
    for file in files:
        found += _read(file / "captions.jsonl" if file.is_dir() else file, fields)
    if not found:
        named = " and ".join(str(file) for file in files)
        raise MetricError(f"{named}: no captions; expected a list of image ids and captions.")
    return found


def match(
    predictions: Iterable[Prediction], items: Sequence[Item], *, sentiment: str = ""
) -> dict[str, str]:
    """Return the captions that were written in a sentiment, by the id of their item."""
    ids = _known_names(items)
    found: dict[str, Prediction] = {}
    unknown: list[str] = []
    for one in predictions:
        if sentiment and one.sentiment and one.sentiment != sentiment:
            continue
        id_ = next((ids[name] for name in one.names if name in ids), None)
        if id_ is None:
            unknown.append(f"{one.names[0]} ({one.place})")
        elif id_ in found:
            remedy = ", or --sentiment." if one.sentiment and not sentiment else "."
            raise MetricError(
                f"{one.place}: a second caption for image {id_}; the first is {found[id_].place}. "
                f"Give one caption per image{remedy}"
            )
        else:
            found[id_] = one
    if unknown:
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        raise MetricError(
            f"Captions for images that are not in the split: {', '.join(unknown[:_NAMED])}{more}. "
            f"It has {len(ids):,} names such as {next(iter(ids))}. Choose the split that the "
            "captions were made for."
        )
    return {id_: one.caption for id_, one in found.items()}


def optimised_models(files: Iterable[Path]) -> tuple[str, ...]:
    """Return the ids of the models that runs of ours optimised their captions for."""
    found: list[str] = []
    for settings in (file / "settings.json" for file in files):
        if settings.is_file():
            of_run = as_record(read_json(settings), settings.name).fields.get("settings")
            models = of_run.get("models") if isinstance(of_run, dict) else None
            found += map(str, models.values()) if isinstance(models, dict) else ()
    return tuple(dict.fromkeys(found))


def _read(file: Path, fields: tuple[str, ...]) -> Iterator[Prediction]:
    records: Iterable[Record]
    if file.suffix == ".jsonl":
        records = json_lines(file)
    else:
        content = read_json(file)
        if isinstance(content, dict) and not any(key in content for key in (*fields, *_NAME)):
            for key, value in content.items():
                place = f"{file.name}: {key!r}"
                yield Prediction(place, (key, last_part(key)), _text(value, place))
            return
        entries = content if isinstance(content, list) else [content]
        records = as_records(entries, f"{file.name}: entry")
    for record in records:
        if record.fields.get("ok") is False:  # A run's own record of an image that failed.
            continue
        names = [name for key in _NAME if (name := record.id(key, ""))]
        key = next((key for key in fields if record.has(key)), None)
        if not names or key is None:
            raise MetricError(
                f"{record.place}: expected one of {', '.join(_NAME)} and one of "
                f"{', '.join(fields)}; found {record.names}."
            )
        both = tuple(each for name in names for each in (name, last_part(name)))
        caption = _text(record.fields[key], record.place)
        yield Prediction(record.place, both, caption, record.text("sentiment", ""))


def _text(value: Any, place: str) -> str:
    """Return a caption, which some files have in a list of one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        what = f"a list of {len(value)}" if isinstance(value, list) else short(value)
        raise MetricError(f"{place}: the caption is {what}, expected a text.")
    return value


def _known_names(items: Sequence[Item]) -> dict[str, str]:
    """Return the id behind every name of an image: id, file name, file name without ending."""
    names: dict[str, str] = {item.id: item.id for item in items}
    for part in ("name", "stem"):
        of_files = dict.fromkeys((getattr(item.image, part), item.id) for item in items)
        count = Counter(name for name, _ in of_files)
        # A name that two images share is the name of neither.
        names |= {name: id_ for name, id_ in of_files if count[name] == 1 and name not in names}
    return names
