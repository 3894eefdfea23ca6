"""The options of `fuseprompt evaluate` and `fuseprompt merge`.

Nothing heavy is imported here. Read next: `fuseprompt.cli.evaluate`.
"""

import os
from argparse import SUPPRESS

from jsonargparse import ArgumentParser
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from fuseprompt.cli.parser_base import TRANSFERS, Device, command_parser


def evaluate_parser() -> ArgumentParser:
    """Return the parser of `fuseprompt evaluate`."""
    parser = command_parser(
        "fuseprompt evaluate DATASET --root DIR --out RUN [OPTIONS]",
        "Caption a dataset into a folder, score it and write a report; --resume goes on with it.",
    )
    add = parser.add_argument
    # A default would hide the dataset that a file of --config names.
    add(
        "dataset",
        nargs="?",
        default=SUPPRESS,
        metavar="DATASET",
        help="coco, karpathy, nocaps, senticap, flickr30k, flickrstyle10k or folder",
    )
    add("--root", default=None, metavar="DIR", help="folder of the dataset")
    add("--out", default=None, metavar="RUN", help="folder to write to")
    add("--config", action="config", metavar="FILE", help="YAML file with any of these options")
    add("--resume", action="store_true", help="go on with the run in the folder, if there is one")
    _add_dataset_options(parser)
    _add_search_options(parser)
    add_worker_options(parser)
    return parser


def merge_parser() -> ArgumentParser:
    """Return the parser of `fuseprompt merge`."""
    parser = command_parser(
        "fuseprompt merge RUN ... [--out RUN] [OPTIONS]",
        "Join the folders of a run's shards, score the whole and write its report.",
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="folder of a run; one alone is merged in place")
    add("--out", default=None, metavar="RUN", help="folder to make of several")
    add("--root", default=None, metavar="DIR", help="folder of the dataset, if it has moved")
    add_scoring_options(parser)
    return parser


def _add_dataset_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--split", default=None, metavar="NAME", help="split (default: the dataset's first)")
    add("--sentiment", default=None, metavar="S", help="tone, such as positive, or both")
    add("--limit", type=PositiveInt, default=None, metavar="N", help="only the first N images")
    add(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="work on a part, in a folder of its own; auto asks SLURM or torchrun",
    )
    add_scoring_options(parser)


def add_scoring_options(parser: ArgumentParser) -> None:
    """Add what decides how captions are scored."""
    add = parser.add_argument
    add("--spice-folder", default=None, metavar="DIR", help="Stanford CoreNLP 3.6.0, for SPICE")
    add("--no-score", action="store_true", help="write captions and report, compute no scores")


def _add_search_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--models",
        metavar="NAME",
        default=os.environ.get("FUSEPROMPT_MODELS") or "offline",
        help="offline, paper, or a YAML file with the keys lm, image_text and sentiment",
    )
    add("--prefix", metavar="TEXT", default="An image of", help="what every text begins with")
    add("--transfer", choices=TRANSFERS, default="best", help="what proposes candidates")
    add("--weight", action="append", metavar="TERM=W", help="such as image=20; may repeat")
    add(
        "--sentiment-temperature",
        type=PositiveFloat,
        default=None,
        metavar="T",
        help="what the classifier's logits are divided by (3; 1 is its plain cross-entropy)",
    )
    add("--steps", type=PositiveInt, default=12, metavar="N", help="most tokens that are appended")
    add(
        "--beam-width",
        type=PositiveInt,
        default=None,
        metavar="N",
        help="open texts per image (8; with the paper's models 5)",
    )
    add(
        "--search-width",
        type=PositiveInt,
        default=None,
        metavar="N",
        help="candidates per open text (16; with the paper's models 512)",
    )
    add("--group-size", type=PositiveInt, default=4, metavar="N", help="images searched together")
    add("--seed", type=int, default=0, metavar="N", help="seed")


def add_worker_options(parser: ArgumentParser) -> None:
    """Add what decides who does the work, and when it ends."""
    add = parser.add_argument
    add("--device", type=Device, default="auto", metavar="NAME", help="auto, cpu or cuda")
    add("--executor", choices=("local", "ray"), default="local", help="processes, or a Ray cluster")
    add(
        "--workers",
        type=PositiveInt,
        default=None,
        metavar="N",
        help="workers (default: one per GPU; one on a CPU)",
    )
    add(
        "--threads",
        type=PositiveInt,
        default=None,
        metavar="N",
        help="CPU threads per worker, a setting of the run (default: cores / workers)",
    )
    add(
        "--gpus-per-worker",
        type=PositiveFloat,
        default=1.0,
        metavar="X",
        help="with Ray: share of a GPU for each worker, such as 0.5",
    )
    add(
        "--max-failures",
        type=NonNegativeInt,
        default=100,
        metavar="N",
        help="failed images after which the run ends",
    )
    add(
        "--hours",
        type=PositiveFloat,
        default=None,
        metavar="H",
        help="end after so long; --resume goes on",
    )
    add(
        "--group-timeout",
        type=PositiveFloat,
        default=None,
        metavar="S",
        help="seconds after which the worker of a group is taken to hang and is replaced",
    )
    add(
        "--check-grouping",
        action="store_true",
        help="caption every image once more by itself, and count the captions that differ",
    )
