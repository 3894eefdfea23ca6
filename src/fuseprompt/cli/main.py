"""The command line: `fuseprompt COMMAND`.

A command is a module of this package with a dataclass `Options` and a function `run`, and a line in
`COMMANDS`; it may have a `preset` of defaults that depend on what was typed. `Options` holds the
job's settings (`fuseprompt.tasks.settings`) and what only the command has.

Exit codes: 0 all went well, 1 something failed (said in one sentence on stderr), 2 a usage error,
130 Ctrl-C, 143 stopped by SIGTERM. Read next: `fuseprompt.cli.options`.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from fuseprompt import __version__
from fuseprompt.cli.options import choose, parse
from fuseprompt.errors import FuseError, UsageError

COMMANDS: Final[Mapping[str, str]] = {
    "caption": "caption images with several models, none of them trained",
    "prepare": "make the offline models on this machine, once",
    "doctor": "print what is installed, what is missing and what mends it",
    "fit": "fit the maps between two models' embeddings",
    "explain": "show what each proposal names at one step, as a page",
    "datasets": "print what datasets need and where to get them; check one",
    "evaluate": "caption a dataset, score it and write a report",
    "merge": "join the shards of a run, score the whole",
    "reproduce": "evaluate with the settings of the paper's experiments",
    "score": "score captions against those of people: BLEU to CIDEr-D",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, of the process by default; return the exit code."""
    _allow_odd_names()
    try:
        return _run(sys.argv[1:] if argv is None else list(argv))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # The reader of our output, such as `head`, has left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(argv: Sequence[str]) -> int:
    if argv and not argv[0].startswith("-"):
        command = choose(argv[0], tuple(COMMANDS), "command")
        module = importlib.import_module(f"fuseprompt.cli.{command}")
        preset = getattr(module, "preset", None)
        return int(module.run(parse(module.Options, argv[1:], command=command, preset=preset)))
    if argv == ["--version"]:
        print(f"fuseprompt {__version__}")
        return 0
    is_asked = argv in (["--help"], ["-h"])
    print(_help(), file=sys.stdout if is_asked else sys.stderr)
    return 0 if is_asked else 2


def _help() -> str:
    return "\n".join(
        [
            "usage: fuseprompt COMMAND [OPTIONS]",
            "",
            "Optimise one text against several models at once, whatever tokens they use.",
            "",
            *(f"  {name:10} {about}" for name, about in COMMANDS.items()),
            "",
            "fuseprompt COMMAND --help shows a command's options, --version the version.",
        ]
    )


def _allow_odd_names() -> None:
    """Let file names that are not UTF-8 be printed, escaped, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
