"""The options of `fuseprompt bench`, for `fuseprompt.cli.parser`, which is to be read next.

Nothing heavy is imported here.
"""

from typing import Any

from jsonargparse import ArgumentParser
from jsonargparse.typing import PositiveInt

from fuseprompt.cli.parser_base import CommandParser, command_parser


def add_bench(commands: Any) -> None:
    """Add the command and the commands inside it to those of the whole command line."""
    about = "measure this package beside the published procedure"
    bench = CommandParser(description=f"{about.capitalize()}.")
    # jsonargparse wants a command added before the commands inside it are.
    commands.add_subcommand("bench", bench, help=about)
    benches = bench.add_subcommands(required=True, dest="bench")
    benches.add_subcommand("fit", _fit_parser(), help="seconds and memory of a fit")
    benches.add_subcommand("search", _search_parser(), help="candidates a second of a search")


def _fit_parser() -> ArgumentParser:
    parser = command_parser(
        "fuseprompt bench fit [OPTIONS]",
        "Fit the adapter at the paper's shapes, with our code and the published procedure.",
    )
    add = parser.add_argument
    add("--words-per-case", type=PositiveInt, default=16_384, help="most words for one map")
    add("--prepare", action="store_true", help="first get the two vocabularies (2 MB)")
    return parser


def _search_parser() -> ArgumentParser:
    parser = command_parser(
        "fuseprompt bench search [OPTIONS]",
        "Search at the paper's shapes, with our code and the published procedure.",
    )
    add = parser.add_argument
    add(
        "--shapes",
        default="paper2",
        help="paper2 (GPT-2-medium and CLIP, random weights), paper3 (with RoBERTa), offline (the "
        "real models); several with commas",
    )
    add("--prepare", action="store_true", help="first get the two vocabularies (2 MB)")
    return parser
