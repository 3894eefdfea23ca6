"""Score the captions of `stamps_table.py` against the stamps' own descriptions, and print tables.

Only pictures that every arm has are scored, so all rows are of the same ones. A stamp has a single
description, often of two words ("A squirrel."), so BLEU and CIDEr are of little use here; what can
be read off is printed with an interval. Needs `pip install "fuseprompt[metrics]"` and Java for the
metrics of captions; what cannot run says why, and the rest is printed.

Exact commands and results: benchmarks/results/offline-table.md.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.bootstrap import interval
from benchmarks.journal import Journal, is_named
from benchmarks.photos.stamps_table import ARMS, BASELINES
from fuseprompt.evaluation.metrics.base import Score, Scoring
from fuseprompt.evaluation.metrics.judges import measure
from fuseprompt.evaluation.metrics.score import score
from fuseprompt.evaluation.report import markdown_table, show
from fuseprompt.tasks.settings import PREFIX

Row = Mapping[str, Any]

#: What arms are called in the tables.
TITLES: Mapping[str, str] = {
    "none": "no gradient",
    "context-free": "context-free table",
    "tproduct": "the paper's transfer",
    "sum": "direct gradient + table",
    "alone": "language model alone",
    "class": "An image of {top class}.",
}
#: Columns: heading and name of the measure. CLIPScore is made of the distance that was minimised.
COLUMNS: Mapping[str, str] = {
    "BLEU-1": "bleu_1",
    "BLEU-4": "bleu_4",
    "METEOR": "meteor",
    "ROUGE-L": "rouge_l",
    "CIDEr": "cider",
    "SPICE": "spice",
    "distinct-1": "distinct_1",
    "distinct-2": "distinct_2",
    "CLIPScore (optimised)": "clip_score",
    "RefCLIPScore (optimised)": "ref_clip_score",
}
#: Models that the captions were optimised for; one of them is all that is there to judge pictures.
WRITERS = ("offline:lm", "offline:image-text")
NUM_SHOWN = 12

#: Words of a description that name nothing.
_FUNCTION_WORDS = re.compile(
    r"\b(an?|and|are|as|at|be|by|can|for|from|has|have|in|into|is|its?|of|on|one|or|some|that|the|"
    r"their|them|they|this|to|two|used|very|was|were|what|when|which|with|you|your)\b"
)


def main() -> None:
    """Read the command line and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", type=Path, required=True, help="of stamps_table.py")
    parser.add_argument("--data", type=Path, help="folder of fetch_data.py; without, no metrics")
    parser.add_argument("--spice-folder", type=Path, help="folder of Stanford CoreNLP 3.6.0")
    args = parser.parse_args()
    arms = complete_rows(Journal(args.journal).rows.values())
    count = len(arms[ARMS[0]])
    print(f"{count} pictures.\n")
    if count:
        if args.data is not None:
            print(metric_table(arms, args.data, spice_folder=args.spice_folder), end="\n\n")
        print(loss_table(arms), end="\n\n")
        for base in ("none", "context-free"):
            print(difference_table(arms, base), end="\n\n")
        print(caption_table(arms))


def complete_rows(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each arm, for the pictures that all arms have, in the same order."""
    found = {(row["arm"], row["picture"]): row for row in rows}
    names = (*ARMS, *BASELINES)
    pictures = [p for a, p in found if a == names[0] and all((n, p) in found for n in names)]
    return {name: [found[name, picture] for picture in pictures] for name in names}


def caption_of(row: Row) -> str:
    """Return the caption proper, without the prefix that all captions have."""
    text: str = row["text"]
    return text.removeprefix(PREFIX).strip()


def shares_a_word(row: Row) -> bool:
    """Return whether a caption has a content word of the description's first sentence."""
    first = re.split(r"[.!?]", row["truth"])[0].lower()
    words = re.findall(r"[a-z]+", _FUNCTION_WORDS.sub(" ", first.replace("'s", "")))
    return bool(words) and is_named(caption_of(row), words)


def metric_table(
    arms: Mapping[str, Sequence[Row]], data: Path, *, spice_folder: Path | None = None
) -> str:
    """Return the metrics of captions, those of papers in percent, and why one has no value."""
    lines = []
    reasons: dict[str, str] = {}
    for arm, rows in arms.items():
        values = measured(rows, data, spice_folder)
        shared = 100 * fmean(shares_a_word(row) for row in rows)
        words = fmean(len(caption_of(row).split()) for row in rows)
        cells = [show(name, values.get(name)) for name in COLUMNS.values()]
        lines.append([TITLES[arm], f"{shared:.0f} %", *cells, f"{words:.1f}"])
        reasons |= {name: s.note for name, s in values.items() if s.value is None}
    notes = [f"{name}: not available: {reason}" for name, reason in reasons.items()]
    head = ["arm", "shares a word", *COLUMNS, "words"]
    return "\n\n".join([markdown_table(head, lines), *notes])


def measured(rows: Sequence[Row], data: Path, spice_folder: Path | None) -> dict[str, Score]:
    """Return all measures of an arm's captions, by name."""
    captions = {row["picture"]: caption_of(row) for row in rows}
    references = {row["picture"]: (row["truth"],) for row in rows}
    images = {picture: data / picture for picture in captions}
    published = score(captions, references, spice_folder=spice_folder).values
    scoring = Scoring(distinct=True, clip_score="offline:image-text", optimised=WRITERS)
    return {**published, **measure(captions, references, images, scoring)}


def loss_table(arms: Mapping[str, Sequence[Row]]) -> str:
    """Return what the search minimised, and what it took; texts without a search have no time."""
    lines = []
    for arm, rows in arms.items():
        cells = [f"{mean(rows, 'fluency'):.2f}", f"{mean(rows, 'image'):.3f}"]
        if arm in ARMS:
            unfinished = sum(not row["finished"] for row in rows)
            cells += [
                f"{mean(rows, 'loss'):.2f}",
                str(unfinished),
                f"{mean(rows, 'cpu_seconds'):.1f}",
            ]
        else:
            cells += ["-"] * 3
        lines.append([TITLES[arm], *cells])
    head = ["arm", "fluency (nats)", "image distance", "loss", "unfinished", "CPU s"]
    return markdown_table(head, lines)


def mean(rows: Sequence[Row], name: str) -> float:
    """Return the mean of a number over rows."""
    return fmean(row[name] for row in rows)


def difference_table(arms: Mapping[str, Sequence[Row]], base: str) -> str:
    """Return the mean difference of each arm to one of them, with 95 % bootstrap intervals."""
    lines = []
    for arm, rows in arms.items():
        if arm == base:
            continue
        pairs = list(zip(rows, arms[base], strict=True))
        differences = {
            "shared": [float(shares_a_word(a)) - float(shares_a_word(b)) for a, b in pairs],
            "image": [a["image"] - b["image"] for a, b in pairs],
            "fluency": [a["fluency"] - b["fluency"] for a, b in pairs],
            "loss": [a["loss"] - b["loss"] for a, b in pairs] if arm in ARMS else [],
        }
        cells = [_with_interval(values) for values in differences.values()]
        lines.append([TITLES[arm], *cells])
    head = [f"minus {TITLES[base]}", "shares a word", "image distance", "fluency", "loss"]
    return markdown_table(head, lines)


def _with_interval(values: list[float]) -> str:
    if not values:
        return "-"
    low, high = interval(values)
    return f"{fmean(values):+.3f} [{low:+.3f}, {high:+.3f}]"


def caption_table(arms: Mapping[str, Sequence[Row]]) -> str:
    """Return the captions of the first pictures; their order is random."""
    lines = [
        [arms["none"][i]["truth"], *(caption_of(arms[arm][i]) for arm in (*ARMS, "class"))]
        for i in range(min(NUM_SHOWN, len(arms["none"])))
    ]
    return markdown_table(["description", *(TITLES[arm] for arm in (*ARMS, "class"))], lines)


if __name__ == "__main__":
    main()
