"""Caption the six example photos with each transfer at equal settings.

A caption names the thing if it has one of the words of tests/data/example_synonyms.json, which was
written before the runs. `--report` prints a line per transfer and the captions.

Exact commands and results: benchmarks/results/captions.md. Read next: `stamps.py`.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.journal import Journal, is_named
from fuseprompt.evaluation.report import markdown_table
from fuseprompt.objective.problem import Problem
from fuseprompt.search.minimize import iterate
from fuseprompt.tasks.caption import method_of, objective_of
from fuseprompt.tasks.models import load_models
from fuseprompt.tasks.settings import OFFLINE, WEIGHTS, CaptionSettings

REPOSITORY = Path(__file__).resolve().parents[2]
PROPOSALS = ("none", "random", "word-table", "gradient", "additive")


def main() -> None:
    """Read the command line, caption, or report."""
    defaults = CaptionSettings()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", type=Path, required=True, help="JSON lines, made or continued")
    parser.add_argument("--proposals", nargs="+", default=list(PROPOSALS))
    parser.add_argument("--weight", type=float, default=WEIGHTS["image"], help="of the image term")
    parser.add_argument("--steps", type=int, default=defaults.max_tokens)
    parser.add_argument("--ending-nats", type=float, default=method_of(defaults).ending_nats)
    parser.add_argument("--group-size", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--report", action="store_true", help="print the tables of a journal")
    args = parser.parse_args()
    journal = Journal(args.journal)
    words = json.loads((REPOSITORY / "tests/data/example_synonyms.json").read_text("utf-8"))
    if args.report:
        report(journal, words)
        return
    torch.set_num_threads(args.threads)
    models = load_models(OFFLINE)
    settings = CaptionSettings(weights={"image": args.weight}, max_tokens=args.steps)
    for name in args.proposals:
        chosen = replace(settings, proposal=name)
        method = replace(method_of(chosen), ending_nats=args.ending_nats)
        setting = {
            "transfer": name,
            "weight": args.weight,
            "steps": args.steps,
            "ending_nats": args.ending_nats,
        }
        key = "{transfer} {weight:g} {steps} {ending_nats:g}".format(**setting)
        photos = [photo for photo in words if f"{key} {photo}" not in journal]
        problems = [
            Problem(photo, {"image": REPOSITORY / "examples/photos" / photo}, chosen.prefix)
            for photo in photos
        ]
        found = iterate(objective_of(chosen, models), method, problems, group_size=args.group_size)
        for photo, result in zip(photos, found, strict=True):
            row = {
                **setting,
                "photo": photo,
                "text": result.text,
                "named": is_named(result.text, words[photo]),
                "loss": round(result.loss, 3),
                **{term: round(value, 3) for term, value in result.terms.items()},
                "finished": result.finished,
                "seconds": round(result.seconds, 2),
                "evaluations": sum(entry.evaluations for entry in result.history),
                "group": args.group_size,
                "threads": args.threads,
            }
            journal.append(f"{key} {photo}", row)


def report(journal: Journal, words: dict[str, list[str]]) -> None:
    """Print the tables: a line per setting, then the captions of each."""
    settings: dict[str, list[dict[str, Any]]] = {}
    for row in journal.rows.values():
        key = "{transfer}, weight {weight:g}, {steps} tokens, ending {ending_nats:g}".format(**row)
        settings.setdefault(key, []).append(row)
    lines, captions = [], []
    for key, rows in settings.items():
        named = sum(is_named(row["text"], words[row["photo"]]) for row in rows)
        loss, fluency, image = (fmean(row[n] for row in rows) for n in ("loss", "fluency", "image"))
        numbers = (f"{named} of {len(rows)}", f"{loss:.2f}", f"{fluency:.2f}", f"{image:.3f}")
        lines.append((key, *numbers))
        captions += [(key.partition(",")[0], Path(r["photo"]).stem, r["text"]) for r in rows]
    print(markdown_table(("setting", "named", "loss", "fluency", "image"), lines), end="\n\n")
    print(markdown_table(("proposal", "photo", "text"), captions))


if __name__ == "__main__":
    main()
