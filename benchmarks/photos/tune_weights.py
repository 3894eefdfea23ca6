"""Caption the tuning pictures at several image weights, and tell how good each setting is.

One search per picture and weight writes down every finished text with the step at which it was
found, and the open beams of each step. From these the outcome for other `steps`, `ending_nats` and
`max_end_nats` follows exactly, without another search: they decide when a search stops and which
finished texts count, not which tokens are proposed. `--report` prints that table from the journal.

The pictures were held out from the head that judges them (training/tuning_pictures.txt). Exact
commands and results: benchmarks/results/captions.md. Read next: `example_captions.py`.
"""

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.journal import Journal, is_named, shard
from fuseprompt.methods.autodan import AutoDANState
from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.models.image_text import TwoTowerModel
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.objective.problem import Problem
from fuseprompt.offline.image_tower import ImageTower
from fuseprompt.offline.manifest import offline_folder
from fuseprompt.tasks.caption import method_of, objective_of
from fuseprompt.tasks.models import CaptionModels, load_models
from fuseprompt.tasks.settings import OFFLINE, CaptionSettings

REPOSITORY = Path(__file__).resolve().parents[2]
PICTURES = REPOSITORY / "training/tuning_pictures.txt"
MAX_STEPS = 12
#: A beam is never given up, so that every rule of stopping can be applied later.
NEVER = -1e9
NUM_FINISHED = 1000


@dataclass(frozen=True)
class Rule:
    """When a search stops and which finished texts count.

    Attributes:
        steps: Most tokens.
        ending_nats: `AutoDAN.ending_nats`.
        max_end_nats: `AutoDAN.max_end_nats`.
    """

    steps: int
    ending_nats: float
    max_end_nats: float


def main() -> None:
    """Read the command line, search, or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of fetch_data.py")
    parser.add_argument("--head", type=Path, help="head that never saw the pictures")
    parser.add_argument("--journal", type=Path, required=True, help="JSON lines, made or continued")
    parser.add_argument("--weights", type=float, nargs="+", default=[8.0, 12.0, 20.0, 30.0])
    parser.add_argument("--first", type=int, default=24, help="pictures from the top of the list")
    parser.add_argument("--part", default="1/1", help="i/n: this process's share")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--ending-nats",
        type=float,
        default=NEVER,
        help="stop early, for one rule only",
    )
    parser.add_argument("--report", action="store_true", help="print the table of a journal")
    args = parser.parse_args()
    journal = Journal(args.journal)
    pictures = dict(itertools.islice(read_list(PICTURES).items(), args.first))
    if args.report:
        report(journal, pictures)
        return
    torch.set_num_threads(args.threads)
    models = load_models(OFFLINE)
    if args.head is not None:
        models = CaptionModels(models.lm, with_head(args.head))
    for weight in args.weights:
        open_ = [p for p in shard(list(pictures), args.part) if f"{weight:g} {p}" not in journal]
        for start in range(0, len(open_), 3):
            group = open_[start : start + 3]
            images = [open_on_white(args.data / path) for path in group]
            logs = search(models, images, weight, ending_nats=args.ending_nats)
            for path, found in zip(group, logs, strict=True):
                journal.append(f"{weight:g} {path}", {"picture": path, "weight": weight, **found})


def read_list(path: Path) -> dict[str, list[str]]:
    """Return the words that name each picture, by path."""
    lines = [line for line in path.read_text("utf-8").splitlines() if line and line[0] != "#"]
    pairs = (line.split(": ", 1) for line in lines)
    return {picture: [word.strip() for word in words.split(",")] for picture, words in pairs}


def with_head(head: Path) -> TwoTowerModel:
    """Return the offline image-text model with another head."""
    tower = ImageTower.load(offline_folder("image-text"), head)
    text = SentenceEncoder.load(offline_folder("sentence"))
    return TwoTowerModel(text, tower.image_features, name="held out")


def open_on_white(path: Path) -> Image.Image:
    """Open a picture and put what is transparent on white."""
    image = Image.open(path).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def search(
    models: CaptionModels,
    images: Sequence[Image.Image],
    weight: float,
    *,
    steps: int = MAX_STEPS,
    ending_nats: float = NEVER,
) -> list[dict[str, Any]]:
    """Search captions and return, for each picture, finished texts and open beams by step."""
    settings = CaptionSettings(weights={"image": weight}, max_tokens=steps)
    method = replace(method_of(settings), ending_nats=ending_nats, num_finished=NUM_FINISHED)
    problems = [Problem(str(i), {"image": im}, settings.prefix) for i, im in enumerate(images)]
    bound = objective_of(settings, models).bind(problems)
    state = method.init(bound)
    found: list[dict[str, Any]] = [{"ends": [], "open": []} for _ in images]
    seen: list[set[str]] = [set() for _ in images]
    while not method.is_done(state):
        before, state = state, method.step(state)
        for i, log in enumerate(found):
            log["open"].append(_beams(before, i))
            new = [entry for entry in state.finished[i] if entry.text not in seen[i]]
            seen[i].update(entry.text for entry in new)
            for entry, nll in zip(new, _nll(bound, [e.text for e in new]), strict=True):
                terms = {name: round(value, 4) for name, value in entry.exact.terms.items()}
                row = {"step": before.num_steps, "text": entry.text, "loss": round(entry.loss, 4)}
                log["ends"].append({**row, **terms, "nll": nll})
    return found


def _beams(state: AutoDANState, problem: int) -> list[list[float]]:
    active = state.active
    rows = [i for i, p in enumerate(active.problems.tolist()) if p == problem]
    return [
        [
            round(float(active.losses[i]), 4),
            round(float(active.nll_sum[i]), 4),
            int(active.num_chosen[i]),
        ]
        for i in rows
    ]


def _nll(bound: BoundObjective, texts: list[str]) -> list[list[float]]:
    """Return the negative log-likelihood of each token after the prefix and of the text's end."""
    if not texts:
        return []
    primary = bound.objective.primary
    given = len(primary.tokenizer.encode(bound.problems[0].prefix))
    ids = primary.tokenizer.encode_batch(texts)
    return [[round(v, 3) for v in row.tolist()] for row in primary.nll(ids, [given] * len(ids))]


def outcome(row: Mapping[str, Any], rule: Rule) -> dict[str, Any] | None:
    """Return the finished text that a search under a rule would have returned, or None.

    Its key "stopped" is the number of tokens after which the search would have stopped.
    """
    best: dict[str, Any] | None = None
    stopped = rule.steps
    for step in range(1, rule.steps + 1):
        for end in row["ends"]:
            if end["step"] == step and end["nll"][-2] <= rule.max_end_nats:
                best = end if best is None or end["loss"] < best["loss"] else best
        beams = row["open"][step] if step < len(row["open"]) else []
        hopeful = min((_hope(beam, rule.ending_nats) for beam in beams), default=float("inf"))
        if best is not None and best["loss"] < hopeful:
            stopped = step
            break
    return None if best is None else {**best, "stopped": stopped}


def _hope(beam: Sequence[float], ending_nats: float) -> float:
    """Return what `AutoDAN` takes an open text's loss to be if it ended here (fluency weighs 1)."""
    loss, nll_sum, count = beam
    return loss + min((nll_sum + ending_nats) / (count + 2) - nll_sum / count, 0.0)


def report(journal: Journal, pictures: Mapping[str, Sequence[str]]) -> None:
    """Print a JSON line per setting, over the pictures that every weight has."""
    rows = list(journal.rows.values())
    weights = sorted({row["weight"] for row in rows})
    shared = [p for p in pictures if all(f"{w:g} {p}" in journal for w in weights)]
    for weight, steps, ending, most in itertools.product(
        weights, (5, 6, 8, 10, 12), (1.0, 2.0, 3.0), (2.0, 4.0)
    ):
        rule = Rule(steps, ending, most)
        found = [(p, outcome(journal.rows[f"{weight:g} {p}"], rule)) for p in shared]
        ends = [(p, end) for p, end in found if end is not None]
        named = [is_named(end["text"], pictures[p]) for p, end in ends]
        means = {
            name: round(sum(end[name] for _, end in ends) / max(len(ends), 1), 3)
            for name in ("fluency", "image", "stopped")
        }
        words = sum(len(end["text"].split()) for _, end in ends) / max(len(ends), 1)
        setting = {"weight": weight, "steps": steps, "ending_nats": ending, "max_end_nats": most}
        counts = {"pictures": len(shared), "finished": len(ends), "named": sum(named)}
        print(json.dumps({**setting, **counts, **means, "words": round(words, 1)}))


if __name__ == "__main__":
    main()
