"""Parsers made of settings dataclasses: each field is an option, or a dataclass of options.

argparse only splits the command line; its values and those of `--config` are read by one function.
"""

import argparse
import dataclasses
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    final,
    get_args,
    get_origin,
    get_type_hints,
)

from fuseprompt import __version__
from fuseprompt.errors import UsageError
from fuseprompt.tasks.kinds import Kind, read_path, read_yaml

_T = TypeVar("_T")

_MISSING: Final = dataclasses.MISSING

#: Kinds of types that have no `Kind` of their own.
_PLAIN: Final = {str: Kind("TEXT"), Path: Kind("PATH", "a path", read_path)}


@dataclass(frozen=True)
class Output:
    """Output of a command.

    Attributes:
        quiet: Print results and errors only.
        json: Print JSON lines on stdout.
    """

    quiet: bool = False
    json: bool = False

    def note(self, text: str) -> None:
        """Print a note on stderr, unless quiet."""
        if not self.quiet:
            print(f"note: {text}", file=sys.stderr)


def parse(
    kind: type[_T],
    argv: Sequence[str],
    *,
    command: str,
    preset: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> _T:
    """Return the options of a command line.

    Args:
        kind: Dataclass of the options. Metadata of a field: "argument" makes it an argument of that
            name, "option" renames an option, "also" has second spellings of the options in it.
        argv: What was typed after the command.
        command: Name of the command.
        preset: Makes defaults, by the name of the field, from what was given.

    Raises:
        UsageError: If something is unknown, missing or malformed.
    """
    options = {option.name: option for option in _options(kind)}
    try:
        found, unknown = _make_parser(kind, command, options.values()).parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise UsageError(f"{str(error).removeprefix('argument ')}.") from None
    if unknown:
        name = unknown[0].partition("=")[0]
        hint = nearest(name, [flag for option in options.values() for flag in option.flags])
        if not name.startswith("-"):
            has_several = any(o.is_argument and o.gather is not None for o in options.values())
            hint = " Put all arguments together, before or after the options." * has_several
        raise UsageError(f"{unknown[0]}: not expected here.{hint}")
    given = {name: options[name].read(value) for name, value in vars(found).items()}
    if (file := given.get("config")) is not None:
        given = {**_read_config(file, kind), **given}
    if preset is not None:
        given = {**preset(given), **given}
    missing = [o.flags[0] for o in options.values() if o.is_required and o.name not in given]
    if missing:
        where = " (here or in the file of --config)" if "config" in options else ""
        raise UsageError(f"{missing[0]} is required{where}; see fuseprompt {command} --help.")
    return _build(kind, given)


def read_values(content: Mapping[str, Any], kind: type, *, at: str = "") -> dict[str, Any]:
    """Return values by field from values by option, as in a file of `--config`."""
    known = {
        flag.strip("-").replace("-", "_").lower(): o for o in _options(kind) for flag in o.flags
    }
    values = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise UsageError(f"{at}no option {key!r}.{nearest(name, list(known))}")
        if value is not None:
            values[known[name].name] = known[name].read(value)
    return values


def nearest(text: str, choices: Sequence[str]) -> str:
    """Return a question that names the choice most like a text, or nothing if none is."""
    near = get_close_matches(text, choices, n=1)
    return f" Did you mean {near[0]}?" if near else ""


@final
@dataclass(frozen=True)
class _Option:
    """A field, and how its value is typed and read."""

    name: str
    flags: tuple[str, ...]
    is_argument: bool
    is_required: bool
    gather: Callable[[Any], Any] | None  # Makes the field's value of several.
    kind: Kind | None  # How one value is read; None for a switch.
    choices: tuple[str, ...]
    help: str

    def read(self, given: Any) -> Any:
        """Return the value of what was typed, or stands in a YAML file."""
        if self.kind is None:
            if not isinstance(given, bool):
                raise UsageError(f"{self.flags[0]} {given}: expected true or false.")
            return given
        if self.gather is None:
            return self._read(given, self.kind)
        several = given if isinstance(given, list) else [given]
        return self.gather(self._read(each, self.kind) for each in several)

    def _read(self, given: Any, kind: Kind) -> Any:
        text = str(given)
        hint = nearest(text, self.choices)
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            hint = " Put a text in quotes, or YAML reads something else in it."
        else:
            with suppress(ValueError):
                value = kind.read(text)
                if kind.accepts(value):
                    return value
        raise UsageError(f"{self.flags[0]} {text or repr(text)}: expected {kind.expected}.{hint}")

    def add_to(self, parser: argparse.ArgumentParser) -> str:
        """Add the option to a parser that only splits; return its place in the usage, if any."""
        if self.kind is None:
            parser.add_argument(*self.flags, dest=self.name, action="store_true", help=self.help)
            return ""
        if self.is_argument:
            (shown,) = self.flags
            nargs = "?" if self.gather is None else "*"
            parser.add_argument(self.name, nargs=nargs, metavar=shown, help=self.help)
            shown += "" if self.gather is None else " ..."
            return shown if self.is_required else f"[{shown}]"
        action, metavar = "store" if self.gather is None else "append", self.kind.metavar
        parser.add_argument(
            *self.flags, dest=self.name, action=action, metavar=metavar, help=self.help
        )
        return f"{self.flags[0]} {metavar}" if self.is_required else ""


def _options(kind: type, also: Mapping[str, str] = types.MappingProxyType({})) -> Iterator[_Option]:
    """Yield the options of a dataclass and of the dataclasses in it."""
    hints, helps = get_type_hints(kind, include_extras=True), _helps(kind)
    for field in dataclasses.fields(kind):
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            yield from _options(field.type, field.metadata.get("also", {}))
        else:
            yield _option(field, hints[field.name], helps.get(field.name, ""), also)


def _option(
    field: "dataclasses.Field[Any]", hint: Any, about: str, also: Mapping[str, str]
) -> _Option:
    gather: Callable[[Any], Any] | None = None
    if get_origin(hint) in (Union, types.UnionType):  # X | None
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
    if get_origin(hint) is tuple:
        hint, gather = get_args(hint)[0], tuple
    kind, choices = _PLAIN.get(hint), ()
    if get_origin(hint) is Annotated:
        hint, kind = hint.__origin__, hint.__metadata__[0]
    if get_origin(hint) is Mapping:
        gather = dict
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        listed = ", ".join(choices)
        kind = Kind("NAME", f"one of {listed}", accepts=choices.__contains__)
        about = f"{about.rstrip('.')}: {listed}"
    default = field.default
    if field.default_factory is not _MISSING:
        default = field.default_factory()
    shown = default
    if isinstance(default, tuple):
        shown = textwrap.shorten(", ".join(default), 80, placeholder=" ...")
    if shown not in ("", {}) and not any(shown is x for x in (None, False, _MISSING)):
        about = f"{about.rstrip('.')} (default: {shown})"
    argument = field.metadata.get("argument")
    names = [field.metadata.get("option", field.name), *also.get(field.name, "").split()]
    return _Option(
        name=field.name,
        flags=(argument,) if argument else tuple(f"--{name}".replace("_", "-") for name in names),
        is_argument=argument is not None,
        is_required=default is _MISSING,
        gather=gather,
        kind=kind if hint is not bool else None,
        choices=choices,
        help=about.rstrip(".").replace("%", "%%"),
    )


def _helps(kind: type) -> dict[str, str]:
    """Return what the docstrings of a class and its bases have about each attribute."""
    helps: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        section = (inspect.getdoc(each) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        name = ""
        for line in section.splitlines():
            if line.startswith(" " * 8):
                helps[name] += f" {line.strip()}"
            else:
                name, _, text = line.strip().partition(": ")
                helps[name] = text
    return helps


def _make_parser(kind: type, command: str, options: Iterable[_Option]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"fuseprompt {command}",
        description=(inspect.getdoc(kind) or "").partition("\n\n")[0],
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        exit_on_error=False,
    )
    shown = [option.add_to(parser) for option in options]
    parser.usage = " ".join([parser.prog, *filter(None, shown), "[OPTIONS]"])
    version = f"fuseprompt {__version__}"
    parser.add_argument("--version", action="version", version=version, help="Print the version")
    return parser


def _read_config(file: Path, kind: type) -> dict[str, Any]:
    """Return the values of a YAML file, by the name of the field."""
    try:
        content = read_yaml(file)
    except ValueError as error:
        raise UsageError(f"--config {file}: {error}.") from None
    if not isinstance(content, dict):
        raise UsageError(f"--config {file}: expected options by name, such as seed: 1.")
    return read_values(content, kind, at=f"--config {file}: ")


def _build(kind: type[_T], given: Mapping[str, Any]) -> _T:
    """Make the dataclass, and those in it, of values by the name of their field."""
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            values[field.name] = _build(field.type, given)
        elif field.name in given:
            values[field.name] = given[field.name]
    return kind(**values)
