"""What the parsers of all commands share: types, wording of errors, the options of every command.

Nothing heavy is imported here. Read next: `fuseprompt.cli.parser`.
"""

import re
from typing import Any, Final, NoReturn

from jsonargparse import ArgumentParser
from jsonargparse.typing import restricted_string_type

from fuseprompt import __version__
from fuseprompt.errors import FuseError

#: As `fuseprompt.tasks.transfers.TRANSFER_NAMES`, which imports torch; a test compares them.
TRANSFERS: Final = (
    "none", "random", "context-free", "direct", "tproduct", "sum", "frames", "anchored",
    "anchored-words", "blend", "best",
)  # fmt: skip

Device = restricted_string_type("Device", r"^(auto|cpu|cuda(:\d+)?)$", docstring="auto, cpu, cuda")


class UsageError(FuseError):
    """An option that cannot be right, whatever the images and models are: exit code 2."""


class CommandParser(ArgumentParser):
    """A parser that names options as they are typed, and what it expected."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the usage and what is wrong, and exit with code 2."""
        super().error(reword(message), ex)  # type: ignore[no-untyped-call, unused-ignore]

    def format_help(self, *given: Any) -> str:  # type: ignore[override, unused-ignore]
        """Return the help without the names of our types, and without defaults that say nothing."""
        text = re.sub(r"\(type:\s+\w+,\s+default:", "(default:", super().format_help(*given))
        return re.sub(r"\s+\(default:\s+(?:null|False)\)", "", text)


#: What our types are called when they were expected, by the names that jsonargparse prints.
_EXPECTED: Final = {
    "PositiveInt": "a whole number above 0",
    "PositiveFloat": "a number above 0",
    "Device": "auto, cpu or cuda",
    "<class 'int'>": "a whole number",
}


def reword(message: str) -> str:
    """Return an error message of jsonargparse as a user of the command line would put it.

    Args:
        message: The message; one that is not known here comes back with its option renamed.

    Returns:
        Such as "--steps 0: expected a whole number above 0."
    """
    message = message.replace("are required: caption.image", "are required: IMAGE")
    found = re.match(r'Parser key "(?:\w+\.)*(\w+)":\s*(.*)', message, re.DOTALL)
    if found is None:
        return message
    option, reason = "--" + found[1].replace("_", "-"), found[2].strip()
    expected = next((words for name, words in _EXPECTED.items() if name in reason), None)
    if expected is None:
        return f"{option}: {reason}"
    got = re.search(
        r": (\S+) does not conform|(?:base 10|to float|Got value): '?([^'\n]*)'?", reason
    )
    value = "" if got is None else f" {got[1] or got[2]}"
    return f"{option}{value}: expected {expected}."


def command_parser(usage: str, description: str) -> ArgumentParser:
    """Return a parser with what every command has; all options would make a usage line too long."""
    parser = CommandParser(usage=usage, description=description)
    version = f"fuseprompt {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version")
    parser.add_argument("--quiet", action="store_true", help="print results and errors only")
    parser.add_argument("--json", action="store_true", help="print JSON lines on stdout")
    return parser
