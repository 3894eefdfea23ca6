"""Captions of real photos, by settings and by texts that need no search; people's are a column.

`run` captions the photos of a folder laid out as COCO's and writes a line for each photo and arm,
`score` adds losses and what people's captions say of each (pycocoevalcap and Java), `page` makes
the page of the committed journal. Settings were chosen on one set of photos ("tune"), by people's
captions and never by what is optimised; then they were committed, and each arm run once on another
("test"). The photos are not in the repository: `fetch_photos.py`. Read next: `caption_scores.py`.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch
from PIL import Image

from benchmarks.bootstrap import interval
from benchmarks.journal import Journal, shard
from benchmarks.photos import caption_scores
from benchmarks.photos.stamps_table import top_class_text
from fuseprompt.evaluation.metrics.coco_tools import tokenize
from fuseprompt.evaluation.report import markdown_table
from fuseprompt.models.images import list_images, open_image
from fuseprompt.objective.problem import Problem
from fuseprompt.search.minimize import minimize
from fuseprompt.tasks.caption import Caption, caption, method_of, objective_of
from fuseprompt.tasks.models import CaptionModels, load_models
from fuseprompt.tasks.settings import OFFLINE, PREFIX, CaptionSettings

JOURNAL: Final = Path(__file__).parents[1] / "results" / "photos.jsonl.gz"

#: Searches; the journal also has rows of others that are no more in the code (the page says which).
ARMS: Final = {
    "default": CaptionSettings(),
    "without examples": CaptionSettings(examples=("",)),
}
TEXTS: Final = ("language model alone", "top class", "people")


def run(
    journal: Journal, root: Path, arms: Sequence[str], photos: Sequence[Path], tone: str | None
) -> None:
    """Caption photos in every arm, and write a line for each; with a tone, as a set of its own."""
    torch.set_num_threads(1)
    models = load_models(OFFLINE, device="cpu", with_sentiment=tone is not None)
    references = caption_scores.read_references(root)
    name = f"{root.name} {tone}" if tone else root.name
    for arm in arms:
        todo = [photo for photo in photos if f"{name} {arm} {photo.name}" not in journal]
        found = _texts(arm, todo, models, references, tone)
        for photo, (text, seconds) in zip(todo, found, strict=True):
            row = {"set": name, "arm": arm, "photo": photo.name, "caption": text}
            journal.append(f"{name} {arm} {photo.name}", row | {"cpu": round(seconds, 2)})


def _texts(
    arm: str,
    photos: Sequence[Path],
    models: CaptionModels,
    references: Mapping[str, Sequence[str]],
    tone: str | None,
) -> Iterator[tuple[str, float]]:
    """Return a caption of each photo, the first of people's, and the CPU seconds that it took."""
    if arm in ARMS:
        settings = replace(ARMS[arm], sentiment=tone)
        objective, size = objective_of(settings, models), settings.group_size
        for start in range(0, len(photos), size):
            group, began = photos[start : start + size], time.process_time()
            found = list(caption(group, settings, objective=objective))
            seconds = (time.process_time() - began) / len(group)
            for one in found:
                assert isinstance(one, Caption), one
                yield one.caption, seconds
    elif arm == "people":
        yield from ((references[photo.name][0], 0.0) for photo in photos)
    elif arm == "top class":
        yield from (
            (top_class_text(open_image(photo)).removeprefix(f"{PREFIX} "), 0.0) for photo in photos
        )
    else:
        # The writer after the same examples, whose picture weighs nothing.
        objective = objective_of(CaptionSettings(weights={"image": 1e-9}), models)
        method = method_of(CaptionSettings(proposal="none", beam_width=3, search_width=32))
        problem = Problem("alone", {"image": Image.new("RGB", (8, 8), "white")}, PREFIX)
        (result,) = minimize(objective, method, problem)
        yield from ((result.text.removeprefix(PREFIX).strip(), 0.0) for _ in photos)


def score(journal: Journal, root: Path, folder: Path) -> None:
    """Add to the rows of a set of photos their losses, and what people's captions say of each."""
    references = caption_scores.read_references(root)
    flat = iter(tokenize([text for texts in references.values() for text in texts]))
    tokenized = {photo: [next(flat) for _ in texts] for photo, texts in references.items()}
    ours = [row for row in journal.rows.values() if row["set"].split()[0] == root.name]
    rows = [row for row in ours if "cider" not in row]
    if not rows:
        return
    captions = tokenize([row["caption"] for row in rows])
    # A person is judged by the four others, of whom the last counts twice: METEOR wants five.
    theirs = [
        [*r[1:], r[-1]] if row["arm"] == "people" else r
        for row, r in ((row, tokenized[row["photo"]]) for row in rows)
    ]
    ciders = caption_scores.cider(captions, theirs, folder)
    meteors = caption_scores.meteor(captions, theirs)
    losses = _losses(rows, root / "val2014", references)
    for row, words, cider, meteor, terms in zip(
        rows, captions, ciders, meteors, losses, strict=True
    ):
        others = references[row["photo"]][row["arm"] == "people" :]
        named = caption_scores.names_a_thing(words, others)
        scores = {"cider": round(cider, 4), "meteor": round(meteor, 4), "named": named}
        journal.append(row["key"], row | terms | scores | {"words": len(words.split())})


def _losses(
    rows: Sequence[Mapping[str, Any]], photos: Path, references: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, float]]:
    """Return fluency without examples, and image distance; of people, means of five captions."""
    torch.set_num_threads(1)
    objective = objective_of(ARMS["without examples"], load_models(OFFLINE, device="cpu"))
    for row in rows:
        bound = objective.bind([Problem("0", {"image": photos / row["photo"]}, PREFIX)])
        texts = references[row["photo"]] if row["arm"] == "people" else [row["caption"]]
        whole = [f"{PREFIX} {text[:1].lower()}{text[1:]}" for text in texts]
        each = [one.terms for one in bound.evaluate(whole, [0] * len(whole))]
        yield {name: round(fmean(one[name] for one in each), 4) for name in ("fluency", "image")}


#: Columns of the table: key of a row, heading, digits.
COLUMNS: Final = (
    ("cider", "CIDEr", 3),
    ("meteor", "METEOR", 3),
    ("named", "names a thing", 2),
    ("fluency", "fluency", 2),
    ("image", "image distance", 3),
    ("words", "words", 1),
    ("cpu", "CPU s", 1),
)


def table(journal: Journal, name: str) -> str:
    """Return the means of the arms on a set of photos, and differences from the first arm."""
    arms: dict[str, dict[str, dict[str, Any]]] = {}
    for row in journal.rows.values():
        if row["set"] == name:
            arms.setdefault(row["arm"], {})[row["photo"]] = row
    lines, against = [], []
    (first, mine), *_ = arms.items()
    for arm, rows in arms.items():
        cells = [_mean([row[key] for row in rows.values()], digits) for key, _, digits in COLUMNS]
        lines.append((arm, str(len(rows)), *cells))
        photos = [photo for photo in rows if photo in mine]
        if arm != first:
            pairs = [
                _mean([mine[p][key] - rows[p][key] for p in photos], digits, sign="+")
                for key, _, digits in COLUMNS[:3]
            ]
            against.append((f"{first} less {arm}", str(len(photos)), *pairs))
    head = [heading for _, heading, _ in COLUMNS]
    means = markdown_table(("arm", "photos", *head), lines)
    return f"{means}\n\n{markdown_table(('paired', 'photos', *head[:3]), against)}\n"


def _mean(values: Sequence[float], digits: int, sign: str = "") -> str:
    low, high = interval([float(value) for value in values])
    spec = f"{sign}.{digits}f"
    return f"{fmean(values):{spec}} [{low:{spec}}, {high:{spec}}]"


def captions(journal: Journal, name: str) -> str:
    """Return a line for each photo of a set: its id and two captions, the worst by CIDEr first."""
    rows = [row for row in journal.rows.values() if row["set"] == name]
    arms = ("default", "former default")
    by_arm = {arm: {r["photo"]: r for r in rows if r["arm"] == arm} for arm in arms}
    new, default = by_arm.values()
    lines = [
        (
            str(int(photo.partition(".")[0].rpartition("_")[2])),
            f"{row['cider']:.2f}",
            row["caption"],
            default[photo]["caption"],
        )
        for photo, row in sorted(new.items(), key=lambda item: (item[1]["cider"], item[0]))
    ]
    return markdown_table(("COCO id", "CIDEr", *by_arm), lines) + "\n"


def page(journal: Journal) -> str:
    """Return what the page has of the journal."""
    parts = [f"## Figures\n\nOn `test`:\n\n{table(journal, 'test')}"]
    parts.append(f"On `tune`, where settings were chosen:\n\n{table(journal, 'tune')}")
    for tone in ("positive", "negative"):
        parts.append(f"On `tune`, asked for a {tone} tone:\n\n{table(journal, f'tune {tone}')}")
    parts.append(f"## The captions of `test`, the worst first\n\n{captions(journal, 'test')}")
    return "\n".join(parts)


def main() -> None:
    """Caption, score, or print what the page has of a journal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("run", "score", "page"))
    parser.add_argument("--root", type=Path, help="photos and annotations, laid out as COCO's")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--arms", nargs="+", default=["default", *TEXTS])
    parser.add_argument("--tone", choices=("positive", "negative"))
    parser.add_argument("--part", default="1/1", help="i/n: this process's share")
    parser.add_argument("--first", type=int, help="photos, all by default")
    parser.add_argument("--idf", type=Path, help="folder for val2014's document frequencies")
    args = parser.parse_args()
    journal = Journal(args.journal)
    if args.do == "run":
        photos = shard(list_images(args.root / "val2014")[: args.first], args.part)
        run(journal, args.root, args.arms, photos, args.tone)
    elif args.do == "score":
        score(journal, args.root, args.idf)
    else:
        print(page(journal), end="")


if __name__ == "__main__":
    main()
