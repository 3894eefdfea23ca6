"""The options of every command, for `fuseprompt.cli.main`, which is to be read next.

Only parsing happens here: nothing heavy is imported, so help and usage errors come at once.
"""

import os

from jsonargparse import ArgumentParser
from jsonargparse.typing import PositiveFloat, PositiveInt

from fuseprompt import __version__
from fuseprompt.cli.parser_base import TRANSFERS, CommandParser, Device, command_parser
from fuseprompt.cli.parser_data import datasets_parser
from fuseprompt.cli.parser_reproduce import reproduce_parser
from fuseprompt.cli.parser_runs import evaluate_parser, merge_parser
from fuseprompt.cli.parser_score import score_parser


def make_parser() -> ArgumentParser:
    """Return the parser of the whole command line."""
    parser = CommandParser(
        prog="fuseprompt",
        description="Optimise one text against several models at once, whatever tokens they use.",
        version=__version__,
    )
    commands = parser.add_subcommands(required=True, dest="command")
    for name, sub, about in (
        ("caption", _caption_parser(), "caption images with several models, none of them trained"),
        ("prepare", _prepare_parser(), "make the offline models on this machine, once"),
        ("doctor", _doctor_parser(), "say what is installed, what is missing and what mends it"),
        ("fit", _fit_parser(), "fit the maps between two models' embeddings"),
        ("explain", _explain_parser(), "show what each transfer proposes at one step, as a page"),
        ("datasets", datasets_parser(), "say what datasets need and where to get them; check one"),
        ("evaluate", evaluate_parser(), "caption a dataset, score it and write a report"),
        ("merge", merge_parser(), "join the shards of a run, score the whole"),
        ("reproduce", reproduce_parser(), "evaluate with the settings of the paper's experiments"),
        ("score", score_parser(), "score captions against those of people: BLEU to CIDEr-D"),
    ):
        commands.add_subcommand(name, sub, help=about)
    return parser


def _caption_parser() -> ArgumentParser:
    parser = command_parser(
        "fuseprompt caption [OPTIONS] IMAGE ...",
        "Caption images; a folder captions its images in name order.",
    )
    add = parser.add_argument
    add("image", nargs="+", metavar="IMAGE", help="image, or folder of images")
    add("--config", action="config", metavar="FILE", help="YAML file with any of these options")
    add(
        "--models",
        metavar="NAME",
        default=os.environ.get("FUSEPROMPT_MODELS") or "offline",
        help="offline, paper, or a YAML file with the keys lm, image_text and sentiment",
    )
    add(
        "--prefix",
        metavar="TEXT",
        default="An image of",
        help="text that every caption begins with",
    )
    add("--sentiment", default=None, metavar="LABEL", help="tone, such as positive")
    add(
        "--sentiment-weight",
        metavar="W",
        type=PositiveFloat,
        default=None,
        help="the same as --weight sentiment=W",
    )
    add(
        "--sentiment-temperature",
        metavar="T",
        type=PositiveFloat,
        default=None,
        help="what the classifier's logits are divided by (3; 1 is its plain cross-entropy)",
    )
    add("--steps", metavar="N", type=PositiveInt, default=12, help="most tokens that are appended")
    add("--max-tokens", metavar="N", type=PositiveInt, default=None, help="the same as --steps")
    add(
        "--beam-width",
        metavar="N",
        type=PositiveInt,
        default=None,
        help="open texts per image (8; with the paper's models 5)",
    )
    add(
        "--search-width",
        metavar="N",
        type=PositiveInt,
        default=None,
        help="candidates per open text (16; with the paper's models 512)",
    )
    add("--transfer", choices=TRANSFERS, default="best", help="what proposes candidates")
    add("--weight", action="append", metavar="TERM=W", help="such as image=20; may repeat")
    add(
        "--num-captions",
        metavar="N",
        type=PositiveInt,
        default=1,
        help="captions per image, best first",
    )
    add("--together", action="store_true", help="write one text for all images")
    add("--forbid", action="append", metavar="WORD", help="no caption may have it; may repeat")
    add("--require", action="append", metavar="WORD", help="every caption has it; may repeat")
    add(
        "--time-limit",
        metavar="S",
        type=PositiveFloat,
        default=None,
        help="seconds per image group",
    )
    add("--group-size", metavar="N", type=PositiveInt, default=4, help="images searched together")
    add("--seed", metavar="N", type=int, default=0, help="seed")
    add("--device", metavar="NAME", type=Device, default="auto", help="auto, cpu or cuda")
    add("--out", default=None, metavar="FILE", help="write JSON lines there too")
    add("--prepare", action="store_true", help="make the offline models first if need be")
    return parser


def _prepare_parser() -> ArgumentParser:
    parser = command_parser(
        "fuseprompt prepare [OPTIONS]", "Make the offline models on this machine, once."
    )
    parser.add_argument("--force", action="store_true", help="make all of them anew")
    return parser


def _doctor_parser() -> ArgumentParser:
    parser = command_parser(
        "fuseprompt doctor [MODEL...] [OPTIONS]",
        "Say what is installed, which models are here, and what mends what is missing.",
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        help="load these instead, and say what is unusual: offline id, folder, GGUF file or Hub id",
    )
    return parser


def _fit_parser() -> ArgumentParser:
    parser = command_parser(
        "fuseprompt fit --primary ID --secondary ID --out FOLDER [OPTIONS]",
        "Fit maps between two models' embeddings, one per pair of token counts.",
    )
    add = parser.add_argument
    add(
        "--primary",
        required=True,
        metavar="ID",
        help="model whose tokens are chosen: offline id, folder or Hub id",
    )
    add("--secondary", required=True, metavar="ID", help="the other model")
    add("--out", required=True, metavar="FOLDER", help="for table.safetensors and table.json")
    add("--words", default=None, metavar="FILE", help="text whose words are used (default: ours)")
    add("--corpus", choices=("wikitext",), default=None, help="words of a corpus from the Hub")
    add("--frequency-weights", action="store_true", help="let a word count as often as it occurs")
    add("--max-tokens", type=PositiveInt, default=4, help="most tokens of a word")
    add("--words-per-case", type=PositiveInt, default=16_384, help="most words for one map")
    add("--by-length", action="store_true", help="one map per count of the secondary (the paper)")
    add("--rank", type=PositiveInt, default=None, help="tubal rank of the maps")
    add("--seed", type=int, default=0, help="which words are taken and which held out")
    add("--local-only", action="store_true", help="do not download models")
    return parser


def _explain_parser() -> ArgumentParser:
    parser = command_parser(
        "fuseprompt explain IMAGE --out FILE.html [OPTIONS]",
        "Show one step of a photo's caption: what each transfer proposes, and what is true.",
    )
    add = parser.add_argument
    add("image", metavar="IMAGE", help="the photo")
    add("--out", required=True, metavar="FILE.html", help="the page to write")
    add("--step", type=PositiveInt, default=None, help="step of the search (default: 2)")
    add("--text", default=None, metavar="TEXT", help="look at this open text instead of a step")
    add("--transfer", action="append", metavar="NAME", help="compare only these; may repeat")
    add("--prefix", default="An image of", help="text that every caption begins with")
    add("--search-width", type=PositiveInt, default=64, help="proposals of each transfer")
    add("--likeliest", type=PositiveInt, default=2000, help="likeliest tokens that are judged too")
    add("--models", default="offline", help="offline, paper, or a YAML file, as for caption")
    return parser
