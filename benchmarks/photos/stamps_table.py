"""Caption Tux Paint stamps with every transfer, and with two texts that need no search.

Each picture is captioned by every arm before the next picture, so that a run cut short is a fair
sample. The order of the pictures is random; none of them was trained or tuned on or is used by
another benchmark. Letters, digits, notes and coins (the folder "symbols") are left out: an image
network that was trained on photos knows nothing of them, whoever proposes the words. All this was
settled before any was run.

Exact commands and results: benchmarks/results/offline-table.md. Read next: `stamps.py`.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.journal import Journal
from benchmarks.photos.sentiment import chosen_pictures, unused_stamps
from benchmarks.photos.stamps import judge
from benchmarks.photos.tune_weights import open_on_white
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.offline.image_tower import ImageTower, class_text
from fuseprompt.offline.manifest import offline_folder
from fuseprompt.search.minimize import minimize
from fuseprompt.tasks.caption import method_of, objective_of
from fuseprompt.tasks.models import CaptionModels, load_models
from fuseprompt.tasks.settings import OFFLINE, CaptionSettings, ProposalName

#: Arms of the tables, as they were called when they were run; the sum can be run at 7e42810.
ARMS = ("none", "context-free", "tproduct", "sum")
#: What proposes in each arm that can be run today.
PROPOSALS: Final[Mapping[str, ProposalName]] = {
    "none": "none",
    "context-free": "word-table",
    "tproduct": "fuse",
}
#: Texts without a search: the language model's own, and the image network's most probable class.
BASELINES = ("alone", "class")
SEARCH_WIDTH, BEAM_WIDTH = 32, 3
NUM_STAMPS = 300


def main() -> None:
    """Read the command line and caption what the journal lacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of fetch_data.py")
    parser.add_argument("--journal", type=Path, required=True, help="JSON lines, made or continued")
    parser.add_argument("--first", type=int, default=100, help="pictures, at most 300")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    journal = Journal(args.journal)
    models = load_models(OFFLINE)
    objective = objective_of(arm_settings("none"), models)
    alone: str | None = None
    for picture, truth in table_stamps(args.data)[: args.first]:
        image = open_on_white(args.data / picture)
        for arm in PROPOSALS:
            if f"{arm} {picture}" not in journal:
                row = search(objective, arm, picture, image)
                journal.append(f"{arm} {picture}", {"picture": picture, "truth": truth, **row})
        if all(f"{arm} {picture}" in journal for arm in BASELINES):
            continue
        if alone is None:
            alone = language_model_alone(models)
        texts = {"alone": alone, "class": top_class_text(image)}
        for arm, row in judge(models, image, texts).items():
            row = {"picture": picture, "truth": truth, "arm": arm, **row}
            journal.append(f"{arm} {picture}", row)


def table_stamps(data: Path) -> list[tuple[str, str]]:
    """Return path and English description of 300 stamps, in random order."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "training"))
    from image_data import list_stamps

    study = set(chosen_pictures(data))
    truths = {item.path: item.phrases[0] for item in list_stamps(data)[0]}
    left = [path for path in unused_stamps(data) if path not in study and "/symbols/" not in path]
    return [(path, truths[path]) for path in random.Random(4).sample(left, NUM_STAMPS)]


def arm_settings(arm: str) -> CaptionSettings:
    """Return the settings of an arm: those of captions, but a narrower search."""
    return CaptionSettings(
        proposal=PROPOSALS[arm], beam_width=BEAM_WIDTH, search_width=SEARCH_WIDTH
    )


def search(objective: Objective, arm: str, picture: str, image: Any) -> dict[str, Any]:
    """Caption a picture; seconds are the wall's and the processor's."""
    settings = arm_settings(arm)
    wall, cpu = time.monotonic(), time.process_time()
    (found,) = minimize(
        objective, method_of(settings), Problem(picture, {"image": image}, settings.prefix)
    )
    return {
        "arm": arm,
        "text": found.text,
        "loss": round(found.loss, 4),
        **{name: round(float(value), 4) for name, value in found.terms.items()},
        "finished": found.finished,
        "seconds": round(time.monotonic() - wall, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
    }


def language_model_alone(models: CaptionModels) -> str:
    """Return what a search of the same width says when pictures weigh nothing."""
    from PIL import Image

    settings = CaptionSettings(
        weights={"image": 1e-9},
        proposal="none",
        beam_width=BEAM_WIDTH,
        search_width=SEARCH_WIDTH,
    )
    problem = Problem("alone", {"image": Image.new("RGB", (8, 8), "white")}, settings.prefix)
    return minimize(objective_of(settings, models), method_of(settings), problem)[0].text


def top_class_text(image: Any) -> str:
    """Return "An image of a NAME." for the image network's most probable class."""
    names = json.loads((offline_folder("image-text") / "classes.json").read_text("utf-8"))
    tower = ImageTower.load(offline_folder("image-text"), None)
    pixels = tower.preprocess_centre(image)[None]
    return class_text(names[int(tower.network.classify(tower.features(pixels)).argmax())])


if __name__ == "__main__":
    main()
