"""The options of `fuseprompt reproduce`.

Nothing heavy is imported here. Read next: `fuseprompt.cli.reproduce`.
"""

from typing import Final

from jsonargparse import ArgumentParser
from jsonargparse.typing import PositiveInt

from fuseprompt.cli.parser_base import command_parser
from fuseprompt.cli.parser_runs import add_scoring_options, add_worker_options

#: Experiments of the paper, each a file `paper_NAME.yaml` in `fuseprompt/configs`.
EXPERIMENTS: Final = ("coco", "nocaps", "senticap")


def reproduce_parser() -> ArgumentParser:
    """Return the parser of `fuseprompt reproduce`."""
    parser = command_parser(
        "fuseprompt reproduce NAME --root DIR --out RUN [OPTIONS]",
        "Repeat an experiment of the paper with its settings: caption, score, report.",
    )
    add = parser.add_argument
    add("name", choices=EXPERIMENTS, metavar="NAME", help=", ".join(EXPERIMENTS))
    add("--root", required=True, metavar="DIR", help="folder of the dataset")
    add("--out", required=True, metavar="RUN", help="folder to write to")
    add("--resume", action="store_true", help="go on with the run in the folder, if there is one")
    add("--limit", type=PositiveInt, default=None, metavar="N", help="only the first N images")
    add("--shard", default=None, metavar="I/N", help="work on a part, in a folder of its own")
    # Other settings than the paper's, to try the experiment on a small machine.
    add("--models", default=None, metavar="NAME", help="instead of the paper's: offline, YAML file")
    for option in ("--steps", "--beam-width", "--search-width"):
        add(option, type=PositiveInt, default=None, metavar="N", help="instead of the paper's")
    add(
        "--group-size",
        type=PositiveInt,
        default=None,
        metavar="N",
        help="images searched together (64, for a GPU; the paper names no number)",
    )
    add_scoring_options(parser)
    add_worker_options(parser)
    return parser
