"""The 40 problems of the search budget: 24 pictures, 8 target sentences, 8 tones.

Pictures are Tux Paint stamps, none of them among the 40 of `stamps.py`, never trained or tuned on.
Sentences and the beginnings of the tone problems are COCO captions (`fuseprompt.data`), none of the
first 24, which the fidelity benchmark uses. Kinds are mixed, so that any first part of them is a
fair sample.

This file searches nothing. Read next: `arms.py`.
"""

import random
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.photos.stamps import chosen_stamps
from benchmarks.photos.tune_weights import open_on_white
from benchmarks.search_budget.meter import RememberingLM
from fuseprompt.models.hub import load
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency, ImageText, Label, TextSimilarity
from fuseprompt.tasks.settings import PREFIX, SENTIMENT_TEMPERATURE, WEIGHTS

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_PICTURES, NUM_SENTENCES, NUM_TONES = 24, 8, 8
#: Captions of the fidelity benchmark, which are left to it.
_CAPTIONS_TAKEN = 24
#: Words of a caption that begin a tone problem.
_PREFIX_WORDS = 4


@dataclass(frozen=True)
class Item:
    """A problem before its models are loaded.

    Attributes:
        name: Unique in the journal.
        kind: "image", "similarity" or "sentiment".
        target: A picture's path below the data folder, a sentence, or a label.
        prefix: How the text begins.
    """

    name: str
    kind: str
    target: str
    prefix: str = PREFIX


def all_items(data: Path, captions: list[str]) -> list[Item]:
    """Return the 40 problems, three pictures, a sentence and a tone at a time."""
    sys.path.insert(0, str(REPOSITORY / "training"))
    from image_data import list_stamps

    taken = {path for path, _ in chosen_stamps(data)}
    stamps = [item.path for item in list_stamps(data)[0] if item.path not in taken]
    pictures = [
        Item(f"image/{Path(path).stem}", "image", path)
        for path in random.Random(1).sample(stamps, NUM_PICTURES)
    ]
    rest = random.Random(2).sample(captions[_CAPTIONS_TAKEN:], NUM_SENTENCES + NUM_TONES)
    sentences = [
        Item(f"similarity/{i}", "similarity", text) for i, text in enumerate(rest[:NUM_SENTENCES])
    ]
    tones = [
        Item(f"sentiment/{i}", "sentiment", ("positive", "negative")[i % 2], begin(text))
        for i, text in enumerate(rest[NUM_SENTENCES:])
    ]
    mixed: list[Item] = []
    for i in range(NUM_SENTENCES):
        mixed += [*pictures[3 * i : 3 * i + 3], sentences[i], tones[i]]
    return mixed


def begin(caption: str) -> str:
    """Return the first words of a caption."""
    return " ".join(caption.split()[:_PREFIX_WORDS]).rstrip(" ,.;:")


@cache
def objective(kind: str) -> Objective:
    """Return the objective of a kind of problem, as captions have it; models are loaded once."""
    match kind:
        case "image":
            term: Any = ImageText(_model("offline:image-text"), weight=WEIGHTS["image"])
        case "similarity":  # The same text tower and the same scale as pictures.
            term = TextSimilarity(_model("offline:sentence"), weight=WEIGHTS["image"])
        case _:
            weight, temperature = WEIGHTS["sentiment"], SENTIMENT_TEMPERATURE
            term = Label(_model("offline:sentiment"), weight=weight, temperature=temperature)
    return Objective([Fluency(_writer(), weight=WEIGHTS["fluency"]), term])


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
