"""Compare captions of 40 Tux Paint stamps with two texts that need no search.

(a) What the language model alone says after the prefix (image weight 1e-9, one text for all).
(b) "An image of a {class}." for the image network's most probable class.

The comparison at equal fluency asks, for each stamp, for the finished text of our search with the
lowest image distance among those that are at least as fluent as (b); where the search found none,
the stamp counts as a tie at (b)'s own distance, so that no stamp is left out. Image distance is
1 - cosine under the image-text model that the search itself minimises. The stamps took no part in
training or in any choice.

Exact commands and results: benchmarks/results/captions.md, which is also what to read next.
"""

import argparse
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.bootstrap import interval
from benchmarks.journal import Journal, shard
from benchmarks.photos.tune_weights import Rule, open_on_white, outcome, search
from fuseprompt.evaluation.report import markdown_table
from fuseprompt.objective.problem import Problem
from fuseprompt.offline.image_tower import ImageTower, class_text
from fuseprompt.offline.manifest import offline_folder
from fuseprompt.search.minimize import minimize
from fuseprompt.tasks.caption import method_of, objective_of
from fuseprompt.tasks.models import CaptionModels, load_models
from fuseprompt.tasks.settings import OFFLINE, PREFIX, WEIGHTS, CaptionSettings

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_STAMPS = 40
GROUP = 4
TERMS = ("fluency", "image")


def main() -> None:
    """Read the command line, caption, or report."""
    defaults = CaptionSettings()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of fetch_data.py")
    parser.add_argument("--journal", type=Path, required=True, help="JSON lines, made or continued")
    parser.add_argument("--weight", type=float, default=WEIGHTS["image"], help="of the image term")
    parser.add_argument("--steps", type=int, default=defaults.max_tokens)
    parser.add_argument("--ending-nats", type=float, default=method_of(defaults).ending_nats)
    parser.add_argument("--part", default="1/1", help="i/n: this process's share")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="print the tables of a journal")
    args = parser.parse_args()
    journal = Journal(args.journal)
    if args.report:
        print(report(journal, Rule(args.steps, args.ending_nats, method_of(defaults).max_end_nats)))
        return
    torch.set_num_threads(args.threads)
    models = load_models(OFFLINE)
    alone = language_model_alone(models, args.steps, args.ending_nats)
    names = json.loads((offline_folder("image-text") / "classes.json").read_text("utf-8"))
    tower = ImageTower.load(offline_folder("image-text"), None)
    stamps = [s for s in shard(chosen_stamps(args.data), args.part) if s[0] not in journal]
    for start in range(0, len(stamps), GROUP):
        group = stamps[start : start + GROUP]
        images = [open_on_white(args.data / path) for path, _ in group]
        pixels = torch.stack([tower.preprocess_centre(image) for image in images])
        classes = tower.network.classify(tower.features(pixels)).argmax(dim=-1).tolist()
        found = search(models, images, args.weight, steps=args.steps, ending_nats=args.ending_nats)
        for (path, truth), image, index, log in zip(group, images, classes, found, strict=True):
            texts = {"alone": alone, "class": class_text(names[index])}
            row = {"truth": truth, "weight": args.weight, "ends": log["ends"], "open": log["open"]}
            journal.append(path, row | judge(models, image, texts))


def chosen_stamps(data: Path) -> list[tuple[str, str]]:
    """Return path and caption of 40 stamps, drawn once from all that are pictures."""
    sys.path.insert(0, str(REPOSITORY / "training"))
    from image_data import list_stamps

    stamps = [(item.path, item.phrases[0]) for item in list_stamps(data)[0]]
    return random.Random(0).sample(stamps, NUM_STAMPS)


def language_model_alone(models: CaptionModels, steps: int, ending_nats: float) -> str:
    """Return what the search says when pictures weigh nothing."""
    from PIL import Image

    settings = CaptionSettings(weights={"image": 1e-9}, max_tokens=steps)
    problem = Problem("alone", {"image": Image.new("RGB", (8, 8), "white")}, settings.prefix)
    method = replace(method_of(settings), ending_nats=ending_nats)
    return minimize(objective_of(settings, models), method, problem)[0].text


def judge(models: CaptionModels, image: Any, texts: dict[str, str]) -> dict[str, Any]:
    """Return text, fluency and image distance of given texts."""
    settings = CaptionSettings()
    bound = objective_of(settings, models).bind([Problem("0", {"image": image}, settings.prefix)])
    exact = bound.evaluate(list(texts.values()), [0] * len(texts))
    return {
        name: {"text": text, **{k: round(v, 4) for k, v in one.terms.items()}}
        for (name, text), one in zip(texts.items(), exact, strict=True)
    }


def report(journal: Journal, rule: Rule) -> str:
    """Return the tables: means, paired differences with intervals, and the captions."""
    rows = list(journal.rows.values())
    ours = [outcome(row, rule) for row in rows]
    assert all(end is not None for end in ours), "a stamp without a finished caption"
    matched = [equally_fluent(row) for row in rows]
    alone, top = ([row[arm] for row in rows] for arm in ("alone", "class"))
    arms = {
        "ours": ours,
        "language model alone": alone,
        "top class": top,
        "ours, as fluent as top class": matched,
    }
    means = [
        [name, *(f"{sum(end[term] for end in ends) / len(ends):.3f}" for term in TERMS)]
        for name, ends in arms.items()
    ]
    found = [(m, t) for m, t in zip(matched, top, strict=True) if m is not t]
    pairs = {
        "ours less language model alone": (ours, alone),
        "ours less top class": (ours, top),
        "ours, as fluent, less top class": (matched, top),
    }
    if len(found) < len(rows):
        pairs[f"the same where found, {len(found)} of {len(rows)}"] = zip(*found, strict=True)
    differences = []
    for name, (left, right) in pairs.items():
        each = [a["image"] - b["image"] for a, b in zip(left, right, strict=True)]
        low, high = interval(each)
        differences.append([name, f"{sum(each) / len(each):+.3f} [{low:+.3f}, {high:+.3f}]"])
    texts = [
        [row["truth"], *(end["text"].removeprefix(PREFIX).strip() for end in (one, row["class"]))]
        for row, one in zip(rows, ours, strict=True)
    ]
    return "\n\n".join(
        [
            markdown_table(["arm", "fluency", "image distance"], means),
            markdown_table(["paired", "image distance"], differences),
            markdown_table(["what it shows", "ours", "top class"], texts),
        ]
    )


def equally_fluent(row: dict[str, Any]) -> dict[str, Any]:
    """Return our closest text among those at least as fluent as the class's, or the class's."""
    fair = [end for end in row["ends"] if end["fluency"] <= row["class"]["fluency"]]
    return min(fair, key=lambda end: end["image"], default=row["class"])


if __name__ == "__main__":
    main()
