"""The options of `fuseprompt datasets`.

Nothing heavy is imported here. Read next: `fuseprompt.cli.datasets`.
"""

from jsonargparse import ArgumentParser

from fuseprompt.cli.parser_base import command_parser


def datasets_parser() -> ArgumentParser:
    """Return the parser of `fuseprompt datasets`."""
    parser = command_parser(
        "fuseprompt datasets [NAME] [OPTIONS]",
        "Say what captioning datasets need and where people get them; with --root, check one.",
    )
    add = parser.add_argument
    add("name", nargs="?", default=None, metavar="NAME", help="coco, karpathy, ... (default: all)")
    add("--root", default=None, metavar="DIR", help="look whether the dataset is complete there")
    add("--split", default=None, metavar="NAME", help="split to check (default: the first listed)")
    add("--sentiment", default=None, metavar="S", help="check only this tone, where there are any")
    return parser
