"""The command line: `fuseprompt COMMAND`, a module with `Options`, `run` and, in some, `preset`.

Exit codes: 0 all went well, 1 something failed, 2 a usage error, 130 Ctrl-C, 143 SIGTERM.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, TextIO

from fuseprompt import __version__
from fuseprompt.cli.options import nearest, parse
from fuseprompt.errors import FuseError, FuseWarning, UsageError

COMMANDS: Final[Mapping[str, str]] = {
    "caption": "caption images with several models, none of them trained",
    "rewrite": "edit texts until a classifier gives them another label",
    "name": "name groups of texts, pictures or vectors by a short label each",
    "elicit": "find a text after which language models go on as wanted",
    "dream": "write fluent text that drives a hidden unit of a model",
    "prepare": "make the offline models on this machine, once",
    "app": "open a page with a tab for each job, in a browser",
    "doctor": "print what is installed, what is missing and what mends it",
    "fit": "fit the maps between two models' embeddings",
    "explain": "show what each proposal names at one step, as a page",
    "evaluate": "caption a dataset, score it and write a report",
    "merge": "join the shards of a run, score the whole",
    "reproduce": "evaluate with the settings of the paper's experiments",
    "score": "score captions against those of people: BLEU to CIDEr-D",
}

_ABOUT: Final = "Optimise one text against several models at once, whatever tokens they use."

_FIRST_STEPS: Final = f"""{_ABOUT}

  fuseprompt prepare                               first, once: make the offline models here
  fuseprompt caption photo.jpg                     caption a photo with them
  fuseprompt rewrite "It broke." --label positive  give a text another label
  fuseprompt app                                   open all jobs in a browser
  fuseprompt --help                                list all commands"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, of the process by default; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # File names that are not UTF-8 are printed, escaped, instead of failing.
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if "--quiet" in argv else "always", FuseWarning)
            warnings.showwarning = _show
            code = _run(argv)
            sys.stdout.flush()  # What cannot be written shows here, not when Python ends.
            return code
    except FuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # The reader of our output, such as `head`, has left.
        _drop_output()
        return 0
    except OSError as error:
        if error.errno is None:  # Of a library's own making.
            raise
        what = f"{error.filename}: cannot be read or written ({error.strerror})"
        if error.filename is None:
            _drop_output()
            what = f"the output cannot be written ({error.strerror}); what was printed is whole"
        with suppress(OSError):  # Errors may go to the same full disk.
            print(f"error: {what}. Make room, or choose another place.", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Send what is left of the output nowhere, so that Python need not fail on it at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of ours as a note, any other as Python does."""
    text = warnings.formatwarning(message, category, filename, lineno, line)
    is_ours = issubclass(category, FuseWarning)
    print(f"note: {message}" if is_ours else text, file=file or sys.stderr)


def _run(argv: Sequence[str]) -> int:
    if not argv:
        print(_FIRST_STEPS, file=sys.stderr)
        return 2
    command = argv[0]
    if command in ("-h", "--help", "help"):
        print(f"usage: fuseprompt COMMAND [OPTIONS]\n\n{_ABOUT}\n")
        print(*(f"  {name:10} {about}" for name, about in COMMANDS.items()), sep="\n")
        print("\nfuseprompt COMMAND --help shows a command's options, --version the version.")
        return 0
    if command == "--version":
        print(f"fuseprompt {__version__}")
        return 0
    if command not in COMMANDS:
        known = ", ".join(COMMANDS)
        near = nearest(command, tuple(COMMANDS))
        raise UsageError(f"command {command or repr(command)}: expected one of {known}.{near}")
    module = importlib.import_module(f"fuseprompt.cli.{command}")
    preset = getattr(module, "preset", None)
    return int(module.run(parse(module.Options, argv[1:], command=command, preset=preset)))
