"""Is a wider search ever worse? Captions of 40 photos at beam widths 1 to 16, paired by photo.

`python -m benchmarks.photos.width run --root FOLDER --journal FILE [--part i/n]` searches the first
photos of a folder (or of COCO's) with the offline models, `table` prints what a journal holds.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.bootstrap import interval
from benchmarks.journal import Journal, shard
from fuseprompt.models.images import list_images
from fuseprompt.search.hypotheses import TIE
from fuseprompt.tasks.caption import Caption, caption, objective_of
from fuseprompt.tasks.models import load_models
from fuseprompt.tasks.settings import OFFLINE, CaptionSettings

JOURNAL = Path(__file__).parents[1] / "results" / "width.jsonl.gz"
WIDTHS = (1, 2, 4, 8, 16)


def run(journal: Journal, root: Path, part: str, first: int) -> None:
    """Caption every photo at every width, and write a line for each."""
    torch.set_num_threads(1)
    models = load_models(OFFLINE, device="cpu")
    objective = objective_of(CaptionSettings(), models)
    coco = root / "val2014"
    photos = list_images(coco if coco.is_dir() else root)[:first]
    for photo in shard(photos, part):
        for width in WIDTHS:
            key = f"{width} {photo.name}"
            if key in journal:
                continue
            settings = CaptionSettings(beam_width=width)
            (found,) = caption(photo, settings, objective=objective, models=models)
            if isinstance(found, Caption):
                result = found.result
                row = {"width": width, "photo": photo.name, "text": result.text}
                row |= {"loss": round(result.loss, 4), "finished": result.finished}
                journal.append(key, row | {"steps": result.history[-1].step})


def table(journal: Journal) -> str:
    """Return mean losses and, between neighbouring widths, differences with their intervals."""
    rows = list(journal.rows.values())
    losses = {w: {r["photo"]: r["loss"] for r in rows if r["width"] == w} for w in WIDTHS}
    photos = sorted(set.intersection(*(set(found) for found in losses.values())))
    lines = [
        f"{len(photos)} photos.",
        "",
        "| width | loss | finished | against the width before | photos worse |",
    ]
    lines.append("|---|---|---|---|---|")
    differences = {}
    for narrow, wide in pairwise(WIDTHS):
        values = [losses[wide][p] - losses[narrow][p] for p in photos]
        low, high = interval(values)
        worse = sum(value > TIE for value in values)
        mean = f"{sum(values) / len(values):+.2f} [{low:+.2f}, {high:+.2f}]"
        differences[wide] = f"{mean} | {worse}, at most by {max(values):.2f}"
    for width in WIDTHS:
        mine = [r for r in rows if r["width"] == width and r["photo"] in photos]
        mean = sum(r["loss"] for r in mine) / len(mine)
        ended = sum(r["finished"] for r in mine)
        lines.append(f"| {width} | {mean:.2f} | {ended} | {differences.get(width, '|')} |")
    texts = {(r["width"], r["photo"]): r["text"] for r in rows}
    rises = [(losses[b][p] - losses[a][p], a, b, p) for a, b in pairwise(WIDTHS) for p in photos]
    lines += ["", "The ten photos that lost most by a wider search:", ""]
    for rise, narrow, wide, photo in sorted(rises, reverse=True)[:10]:
        was, now = texts[narrow, photo], texts[wide, photo]
        lines.append(f"* {rise:+.2f}, {narrow} -> {wide}: {was} -> {now}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Search, or print the table of a journal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("run", "table"))
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--part", default="1/1", help="i/n: this process's share")
    parser.add_argument("--first", type=int, default=40)
    args = parser.parse_args()
    journal = Journal(args.journal)
    if args.do == "run":
        run(journal, args.root, args.part, args.first)
    else:
        print(table(journal), end="")


if __name__ == "__main__":
    main()
