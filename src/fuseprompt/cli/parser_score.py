"""The options of `fuseprompt score`.

Nothing heavy is imported here. Read next: `fuseprompt.cli.score`.
"""

from jsonargparse import ArgumentParser

from fuseprompt.cli.parser_base import command_parser


def score_parser() -> ArgumentParser:
    """Return the parser of `fuseprompt score`."""
    parser = command_parser(
        "fuseprompt score PREDICTIONS ... --dataset NAME --root DIR [OPTIONS]",
        "Score captions against those of people: BLEU, METEOR, ROUGE-L, CIDEr-D, SPICE.",
    )
    add = parser.add_argument
    add(
        "predictions",
        nargs="+",
        metavar="PREDICTIONS",
        help="JSON, JSON lines, or folder of a run; several are the parts of one set",
    )
    add("--dataset", required=True, metavar="NAME", help="coco, karpathy, nocaps, senticap, ...")
    add("--root", required=True, metavar="DIR", help="folder of the dataset")
    add("--split", default=None, metavar="NAME", help="split (default: the dataset's first)")
    add("--sentiment", default=None, metavar="S", help="tone of captions and references, or both")
    add("--field", default=None, metavar="NAME", help="field that has the caption")
    add("--subset", action="store_true", help="score only the images that have a caption")
    add("--by-domain", action="store_true", help="score each domain of NoCaps too")
    add("--spice-folder", default=None, metavar="DIR", help="Stanford CoreNLP 3.6.0, for SPICE")
    add("--distinct", action="store_true", help="also the share of different words and pairs")
    add(
        "--clip-score", default=None, metavar="ID", help="also CLIPScore with this image-text model"
    )
    add("--fluency", default=None, metavar="ID", help="also nats per token of this language model")
    add(
        "--judge",
        action="append",
        metavar="NAME",
        help="also whether the tone is right: vader, afinn or a classifier's id; may repeat",
    )
    add(
        "--optimised",
        action="append",
        metavar="ID",
        help="a model that the captions were optimised for; may repeat (a run's are known)",
    )
    return parser
