"""Parsers made of settings dataclasses.

Every field of a command's `Options` is an option, or a dataclass of options. argparse only splits
the command line; values, from there or from the file of `--config`, are read by one function.
Nothing heavy is imported here. Read next: `fuseprompt.cli.caption`.
"""

import argparse
import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    final,
    get_args,
    get_origin,
    get_type_hints,
)

from fuseprompt import __version__
from fuseprompt.errors import UsageError
from fuseprompt.tasks.settings import Kind

_T = TypeVar("_T")

_MISSING: Final = dataclasses.MISSING

#: Kinds of types that say nothing else.
_PLAIN: Final = {str: Kind("TEXT"), Path: Kind("PATH", "a path", Path)}

#: Values by the name of a field, below those that were typed and those of a file.
Preset = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Output:
    """Output of a command.

    Attributes:
        quiet: Print results and errors only.
        json: Print JSON lines on stdout.
    """

    quiet: bool = False
    json: bool = False


def parse(kind: type[_T], argv: Sequence[str], *, command: str, preset: Preset | None = None) -> _T:
    """Read a command line.

    Args:
        kind: Dataclass of the command's options. A field with the metadata "argument" is an
            argument of that name; the metadata "option" renames an option.
        argv: What was typed after the command.
        command: Name of the command.
        preset: Defaults that depend on what was given.

    Returns:
        The options.

    Raises:
        UsageError: If something is unknown, missing or malformed.
    """
    options = {option.name: option for option in _options(kind)}
    parser = _make_parser(kind, command, options.values())
    found, unknown = parser.parse_known_args(argv)
    if unknown:
        name = unknown[0].partition("=")[0]
        near = _nearest(name, [option.flag for option in options.values()])
        if not name.startswith("-"):
            near = " Put all arguments together, before or after the options."
        raise UsageError(f"{unknown[0]}: not expected here.{near}")
    given = {name: options[name].read(value) for name, value in vars(found).items()}
    if (file := given.get("config")) is not None:
        given = {**_read_config(file, options), **given}
    if preset is not None:
        given = {**preset(given), **given}
    missing = [o.flag for o in options.values() if o.is_required and o.name not in given]
    if missing:
        where = " (here or in the file of --config)" if "config" in options else ""
        raise UsageError(f"{missing[0]} is required{where}; see fuseprompt {command} --help.")
    return _build(kind, given)


def choose(text: str, choices: Sequence[str], what: str) -> str:
    """Return a text that is one of the choices; else name the nearest one."""
    if text in choices:
        return text
    expected = f"expected one of {', '.join(choices)}."
    raise UsageError(f"{what} {text}: {expected}{_nearest(text, choices)}")


@final
@dataclass(frozen=True)
class _Option:
    """A field, and how its value is typed and read.

    Attributes:
        gather: Makes the field's value of several, or None if there is one.
        kind: How one value is read.
        choices: The allowed values, if they are few.
    """

    name: str
    flag: str
    is_argument: bool
    is_required: bool
    is_switch: bool
    gather: Callable[[Any], Any] | None
    kind: Kind
    choices: tuple[str, ...]
    help: str

    def read(self, given: Any) -> Any:
        """Return the value of what was typed, or stands in a YAML file."""
        if self.is_switch:
            if not isinstance(given, bool):
                raise UsageError(f"{self.flag} {given}: expected true or false.")
            return given
        if self.gather is not None:
            return self.gather(map(self._read, given if isinstance(given, list) else [given]))
        return self._read(given)

    def _read(self, given: Any) -> Any:
        text = str(given)
        if self.choices:
            return choose(text, self.choices, self.flag)
        try:
            value = self.kind.read(text)
            if self.kind.accepts(value):
                return value
        except ValueError:
            pass
        raise UsageError(f"{self.flag} {text or repr(text)}: expected {self.kind.expected}.")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the option to a parser that only splits."""
        if self.is_argument:
            nargs = "?" if self.gather is None else "*"
            parser.add_argument(self.name, nargs=nargs, metavar=self.flag, help=self.help)
            return
        how: dict[str, Any] = {"action": "store_true"}
        if not self.is_switch:
            action = "store" if self.gather is None else "append"
            how = {"action": action, "metavar": self.kind.metavar}
        parser.add_argument(self.flag, dest=self.name, help=self.help, **how)


def _options(kind: type) -> Iterator[_Option]:
    """Yield the options of a dataclass and of the dataclasses in it."""
    hints = get_type_hints(kind, include_extras=True)
    helps = _helps(kind)
    for field in dataclasses.fields(kind):
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            yield from _options(field.type)
        else:
            yield _option(field, hints[field.name], helps.get(field.name, ""))


def _option(field: "dataclasses.Field[Any]", hint: Any, about: str) -> _Option:
    many: Callable[[Any], Any] | None = None
    if get_origin(hint) in (Union, types.UnionType):  # X | None
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
    if get_origin(hint) is tuple:
        hint, many = get_args(hint)[0], tuple
    kind = _PLAIN.get(hint)
    if get_origin(hint) is Annotated:
        hint, kind = hint.__origin__, hint.__metadata__[0]
    if get_origin(hint) is Mapping:
        many = dict
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    argument = field.metadata.get("argument")
    default = field.default
    if field.default_factory is not _MISSING:
        default = field.default_factory()
    if choices:
        about = f"{about.rstrip('.')}: {', '.join(choices)}"
    shown = ", ".join(default) if isinstance(default, tuple) else default
    is_told = shown not in ("", {}) and not any(shown is x for x in (None, False, _MISSING))
    about = about.rstrip(".") + f" (default: {shown})" * is_told
    flag = "--" + field.metadata.get("option", field.name).replace("_", "-")
    return _Option(
        name=field.name,
        flag=argument or flag,
        is_argument=argument is not None,
        is_required=default is _MISSING,
        is_switch=hint is bool,
        gather=many,
        kind=kind or Kind("NAME"),
        choices=choices,
        help=about.replace("%", "%%"),
    )


def _helps(kind: type) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say of each attribute."""
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


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong."""
        raise UsageError(f"{message.removeprefix('argument ')}.")


def _make_parser(kind: type, command: str, options: Iterable[_Option]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"fuseprompt {command}",
        description=(inspect.getdoc(kind) or "").partition("\n\n")[0],
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    usage = [parser.prog]
    for option in options:
        option.add_to(parser)
        if option.is_argument:
            many = " ..." if option.gather is not None else ""
            usage.append(f"{option.flag}{many}" if option.is_required else f"[{option.flag}{many}]")
        elif option.is_required:
            usage.append(f"{option.flag} {option.kind.metavar}")
    parser.usage = " ".join([*usage, "[OPTIONS]"])
    version = f"fuseprompt {__version__}"
    parser.add_argument("--version", action="version", version=version, help="Print the version")
    return parser


def _read_config(file: Path, options: Mapping[str, _Option]) -> dict[str, Any]:
    """Return the values of a YAML file, by the name of the field."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"--config {file}: not a YAML file ({reason}).") from None
    if not isinstance(content, dict):
        raise UsageError(f"--config {file}: expected options by name, such as seed: 1.")
    return _read_all(content, options.values(), f"--config {file}: ")


def read_values(content: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the values of options of a dataclass, by the name of the field.

    Args:
        content: Values by the name of the option, as in a file of `--config`.
        kind: The dataclass.

    Raises:
        UsageError: If one is no option, or not what is expected.
    """
    return _read_all(content, list(_options(kind)), "")


def _read_all(content: Mapping[str, Any], options: Iterable[_Option], at: str) -> dict[str, Any]:
    known = {o.flag.removeprefix("--").replace("-", "_").lower(): o for o in options}
    values = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise UsageError(f"{at}no option {key!r}.{_nearest(name, list(known))}")
        if value is not None:
            values[known[name].name] = known[name].read(value)
    return values


def _build(kind: type[_T], given: Mapping[str, Any]) -> _T:
    """Make the dataclass, and those in it, of values by the name of their field."""
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            values[field.name] = _build(field.type, given)
        elif field.name in given:
            values[field.name] = given[field.name]
    return kind(**values)


def _nearest(text: str, choices: Sequence[str]) -> str:
    near = get_close_matches(text, choices, n=1)
    return f" Did you mean {near[0]}?" if near else ""
