"""Kinds of the values in settings: how a person types one, how it is read, what is refused.

Nothing heavy is imported here, so that help and usage errors come at once.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from fuseprompt.cache import decode_text
from fuseprompt.errors import UsageError


@dataclass(frozen=True)
class Kind:
    """A kind of value, as a person types it."""

    metavar: str  # placeholder in help
    expected: str = "text"
    read: Callable[[str], Any] = str  # raises a ValueError for a text of another kind
    accepts: Callable[[Any], bool] = lambda _: True


def read_pair(text: str) -> tuple[str, float]:
    """Return name and number of a text such as "image=20"; another one is a `ValueError`."""
    name, _, number = text.partition("=")
    return name, float(number)


def read_text(text: str) -> str:
    """Return a text that can be written as UTF-8; another one is a `ValueError`."""
    text.encode()
    return text


def read_path(text: str) -> Path:
    """Return a path; one that no file can have is a `ValueError`."""
    if "\0" in text:
        raise ValueError
    return Path(text)


Integer = Annotated[int, Kind("N", "a whole number", int)]
PositiveInt = Annotated[
    int, Kind("N", "a whole number above 0 and below 2**31", int, lambda n: 0 < n < 2**31)
]
NaturalInt = Annotated[int, Kind("N", "a whole number of at least 0", int, lambda n: n >= 0)]
Share = Annotated[float, Kind("X", "a number from 0 to 1", float, lambda x: 0 <= x <= 1)]
PositiveFloat = Annotated[float, Kind("X", "a number above 0", float, lambda x: x > 0)]
Word = Annotated[str, Kind("WORD", "a word in UTF-8", lambda w: read_text(w).strip(), bool)]
Weights = Annotated[Mapping[str, float], Kind("TERM=W", "TERM=NUMBER, such as image=20", read_pair)]
Device = Annotated[
    str,
    Kind("NAME", "auto, cpu or cuda", accepts=re.compile(r"auto|cpu|cuda(:\d+)?").fullmatch),
]
Text = Annotated[str, Kind("TEXT", "text in UTF-8", read_text)]
Name = Annotated[str, Kind("NAME")]
ModelId = Annotated[str, Kind("ID")]
File = Annotated[Path, Kind("FILE", "a file name", read_path)]
Folder = Annotated[Path, Kind("FOLDER", "a folder", read_path)]


def read_yaml(file: Path) -> Any:
    """Return the content of a YAML file; a `ValueError` has the reason where that cannot be."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        text = decode_text(file.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    try:
        return yaml.safe_load(text)
    # A date that is none is a ValueError, brackets without end are a RecursionError.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not a YAML file ({' '.join(str(error).split())})") from None


def check_values(settings: Any) -> None:
    """Refuse in Python the values that the command line refuses; weights are checked elsewhere."""
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        value, several = getattr(settings, name), get_origin(hint) is tuple
        if value is None and type(None) in get_args(hint):
            continue
        hints = [h for h in (hint, *get_args(hint)) if get_origin(h) in (Annotated, Literal)]
        if several and not isinstance(value, tuple | list):
            raise UsageError(f"{name} {value!r}: expected several, such as ({value!r},).")
        for each in value if several else [value]:
            if (expected := _expected(each, [*hints, hint][0])) is not None:
                raise UsageError(f"{name} {each!r}: expected {expected}.")


def _expected(value: Any, hint: Any) -> str | None:
    """Return what a value must be, or None if it is."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return None if value in choices else f"one of {', '.join(choices)}"
    base, kind = (hint.__origin__, hint.__metadata__[0]) if get_args(hint) else (hint, Kind("X"))
    if base not in (int, float, str):
        return None
    is_right = isinstance(value, {int: Integral, float: Real}.get(base, base))
    with suppress(ValueError):
        read = kind.read(value) if is_right and base is str else value
        return None if is_right and kind.accepts(read) else str(kind.expected)
    return str(kind.expected)
