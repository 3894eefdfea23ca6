"""The 40 problems of the search budget: 24 pictures, 8 target sentences, 8 tones.

Pictures are Tux Paint stamps, none of them among the 40 of `stamps.py`, never trained or tuned on.
Sentences and the beginnings of the tone problems are COCO captions (`fuseprompt.data`), none of the
first 24, which the fidelity benchmark uses. To try things, `--pilot` takes tuning pictures.

This file searches nothing. Read next: `arms.py`.
"""

import random
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.photos.stamps import chosen_stamps
from benchmarks.photos.tune_weights import PICTURES, open_on_white, read_list
from benchmarks.search_budget.meter import RememberingLM
from fuseprompt.models.hub import load
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency, ImageText, Label, TextSimilarity
from fuseprompt.tasks.settings import PREFIX, SENTIMENT_TEMPERATURE, WEIGHTS

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_PICTURES, NUM_SENTENCES, NUM_TONES, NUM_PILOT = 24, 8, 8, 8
#: What the tables were measured with, at temperature 1: the defaults of captions at that time. What
#: ships, weight 3 at temperature 3, has a table of its own (`--shipped`).
TONE_WEIGHT = 2.0
#: Kind of the tone problems as captions have them now.
SHIPPED = "sentiment as shipped"
#: Captions of the fidelity benchmark, which are left to it.
_CAPTIONS_TAKEN = 24
#: Words of a caption that begin a tone problem.
_PREFIX_WORDS = 4


@dataclass(frozen=True)
class Item:
    """A problem before its models are loaded.

    Attributes:
        name: Unique in the journal.
        kind: "image", "similarity", "sentiment" or `SHIPPED`.
        target: A picture's path below the data folder, a sentence, or a label.
        prefix: How the text begins.
    """

    name: str
    kind: str
    target: str
    prefix: str = PREFIX


def all_items(data: Path, captions: list[str]) -> list[Item]:
    """Return the 40 problems, kinds mixed, so that any first part of them is a fair sample."""
    sys.path.insert(0, str(REPOSITORY / "training"))
    from image_data import list_stamps

    taken = {path for path, _ in chosen_stamps(data)}
    stamps = [item.path for item in list_stamps(data)[0] if item.path not in taken]
    pictures = [
        Item(f"image/{Path(path).stem}", "image", path)
        for path in random.Random(1).sample(stamps, NUM_PICTURES)
    ]
    rest = _other_captions(captions)
    sentences = [
        Item(f"similarity/{i}", "similarity", text) for i, text in enumerate(rest[:NUM_SENTENCES])
    ]
    tones = tone_items(captions, "sentiment")
    mixed: list[Item] = []
    for i in range(NUM_SENTENCES):
        mixed += [*pictures[3 * i : 3 * i + 3], sentences[i], tones[i]]
    return mixed


def tone_items(captions: list[str], kind: str) -> list[Item]:
    """Return the tone problems, which need no pictures."""
    return [
        Item(f"sentiment/{i}", kind, ("positive", "negative")[i % 2], begin(text))
        for i, text in enumerate(_other_captions(captions)[NUM_SENTENCES:])
    ]


def _other_captions(captions: list[str]) -> list[str]:
    return random.Random(2).sample(captions[_CAPTIONS_TAKEN:], NUM_SENTENCES + NUM_TONES)


def pilot_items() -> list[Item]:
    """Return tuning pictures, to try things on."""
    paths = list(read_list(PICTURES))[:NUM_PILOT]
    return [Item(f"pilot/{Path(path).stem}", "image", path) for path in paths]


def begin(caption: str) -> str:
    """Return the first words of a caption."""
    return " ".join(caption.split()[:_PREFIX_WORDS]).rstrip(" ,.;:")


@cache
def objective(kind: str) -> Objective:
    """Return the objective of a kind of problem; models are loaded once."""
    fluency = Fluency(_writer(), weight=WEIGHTS["fluency"])
    match kind:
        case "image":
            term: Any = ImageText(_model("offline:image-text"), weight=WEIGHTS["image"])
        case "similarity":  # The same text tower and the same scale as pictures.
            term = TextSimilarity(_model("offline:sentence"), weight=WEIGHTS["image"])
        case "sentiment":
            term = Label(_model("offline:sentiment"), weight=TONE_WEIGHT)
        case _:
            weight, temperature = WEIGHTS["sentiment"], SENTIMENT_TEMPERATURE
            term = Label(_model("offline:sentiment"), weight=weight, temperature=temperature)
    return Objective([fluency, term])


@cache
def _writer() -> Any:
    return RememberingLM(_model("offline:lm"))


@cache
def _model(name: str) -> Any:
    return load(name)


def problem(item: Item, data: Path) -> Problem:
    """Return the problem with its target read."""
    if item.kind == "image":
        return Problem(item.name, {"image": open_on_white(data / item.target)}, item.prefix)
    target = "text" if item.kind == "similarity" else "sentiment"
    return Problem(item.name, {target: item.target}, item.prefix)
