"""The command line: `fuseprompt COMMAND`. Parse here, work in one module per command, print there.

Exit codes: 0 all went well, 1 something failed (said in one sentence on stderr), 2 a usage error, 130 Ctrl-C.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from jsonargparse import ArgumentParser

from fuseprompt import __version__
from fuseprompt.errors import FuseError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    Args:
        argv: Arguments; those of the process by default.
    """
    parser = _parser()
    args = parser.parse_args(None if argv is None else list(argv))
    try:
        return _run(args)
    except FuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # The reader of our output, such as `head`, has left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(args: Any) -> int:
    command = args.command
    options = args[command]
    if command == "caption":
        from fuseprompt.cli.caption import run

        return run(options)
    if command == "prepare":
        from fuseprompt.cli.prepare import prepare

        return prepare(force=options.force, quiet=options.quiet, json=options.json)
    from fuseprompt.cli.doctor import doctor

    return doctor(json=options.json)


def _parser() -> ArgumentParser:
    about = "Optimise one text against several models at once, whatever tokens each of them cuts it into."
    parser = ArgumentParser(prog="fuseprompt", description=about, version=__version__)
    commands = parser.add_subcommands(required=True, dest="command")
    commands.add_subcommand("caption", _caption_parser(), help="caption images with three models, none of them trained")
    commands.add_subcommand("prepare", _prepare_parser(), help="make the offline models on this machine, once")
    commands.add_subcommand("doctor", _doctor_parser(), help="say what is installed, what is missing and what mends it")
    return parser


def _caption_parser() -> ArgumentParser:
    parser = ArgumentParser(description="Caption images; a folder captions its images in name order.")
    add = parser.add_argument
    add("image", nargs="+", metavar="IMAGE", help="image, or folder of images")
    add("--config", action="config", help="YAML file with any of these options")
    add("--models", default=os.environ.get("FUSEPROMPT_MODELS", "offline"), help="offline, paper, or a YAML file")
    add("--prefix", default="An image of", help="text that every caption begins with")
    add("--sentiment", default=None, help="tone: a label of the sentiment model, such as positive")
    add("--steps", type=int, default=16, help="most tokens that are appended")
    add("--max-tokens", type=int | None, default=None, help="the same as --steps")
    add("--beam-width", type=int, default=5, help="open texts per image")
    add("--search-width", type=int | None, default=None, help="candidates per open text (64; paper models: 512)")
    add("--transfer", default="best", help="none, random, context-free, direct, tproduct or best")
    add("--weight", action="append", metavar="TERM=W", help="weight of a term, such as image=20; may repeat")
    add("--num-captions", type=int, default=1, help="captions per image, best first")
    add("--forbid", action="append", metavar="WORD", help="word that no caption may have; may repeat")
    add("--require", action="append", metavar="WORD", help="word that every caption must have; may repeat")
    add("--time-limit", type=float | None, default=None, help="seconds per group of images")
    add("--group-size", type=int, default=4, help="images searched together")
    add("--seed", type=int, default=0, help="seed")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--out", default=None, metavar="FILE", help="write JSON lines there too")
    add("--prepare", action="store_true", help="prepare the offline models first if they are missing")
    add("--json", action="store_true", help="print JSON lines")
    add("--quiet", action="store_true", help="print results and errors only")
    return parser


def _prepare_parser() -> ArgumentParser:
    parser = ArgumentParser(description="Make the offline models on this machine, once.")
    parser.add_argument("--force", action="store_true", help="make all of them anew")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument("--json", action="store_true", help="print one JSON object when done")
    return parser


def _doctor_parser() -> ArgumentParser:
    parser = ArgumentParser(description="Say what is installed, which models are here, and what mends what is missing.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="accepted, changes nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
