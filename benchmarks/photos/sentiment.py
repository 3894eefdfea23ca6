"""Caption pictures positively, neutrally and negatively, and judge the tone by other means too.

`--tune` captions six tuning pictures in three tones at two weights of the sentiment and says which
meet the rule (`meets_rule`), which was written before any was run. Without it, 60
Tux Paint stamps are captioned in three tones at the chosen weight; none is among those of
`stamps.py` or `search_budget.py`, none was trained or tuned on. `--report` prints the tables.

The order of the pictures is random, so that a study cut short is a fair sample. Exact commands and
results: benchmarks/results/sentiment.md. Read next: `sentiment_judges.py`.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.bootstrap import interval
from benchmarks.journal import Journal
from benchmarks.photos.sentiment_judges import Judges, mean, most_frequent_word
from benchmarks.photos.stamps import chosen_stamps
from benchmarks.photos.tune_weights import PICTURES, open_on_white, read_list
from benchmarks.search_budget.problems import NUM_PICTURES
from fuseprompt.objective.problem import Problem
from fuseprompt.search.minimize import minimize
from fuseprompt.tasks.caption import method_of, objective_of
from fuseprompt.tasks.models import CaptionModels, load_models
from fuseprompt.tasks.settings import OFFLINE, WEIGHTS, CaptionSettings
from fuseprompt.text.retokenize import PaddedIds

REPOSITORY = Path(__file__).resolve().parents[2]
TONES = ("positive", "negative", "neutral")
#: At the default temperature of the sentiment's loss.
TUNED = (2.0, 3.0)
NUM_TUNING, NUM_STUDY, NUM_SHOWN = 6, 60, 12
#: Pictures searched together, each in three tones.
GROUP = 6


def main() -> None:
    """Read the command line, caption, or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of fetch_data.py; to caption")
    parser.add_argument("--journal", type=Path, required=True, help="JSON lines, made or continued")
    parser.add_argument("--tune", action="store_true", help="choose the weight")
    parser.add_argument("--weight", type=float, default=WEIGHTS["sentiment"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="print the tables of a journal")
    args = parser.parse_args()
    journal = Journal(args.journal)
    if args.report:
        (report_tuning if args.tune else report)(list(journal.rows.values()))
        return
    if args.data is None:
        parser.error("--data is needed to caption")
    torch.set_num_threads(args.threads)
    models = load_models(OFFLINE, with_sentiment=True)
    if not args.tune:
        study(models, journal, args.data, chosen_pictures(args.data), args.weight)
        return
    for weight in TUNED:
        study(models, journal, args.data, list(read_list(PICTURES))[:NUM_TUNING], weight)


def chosen_pictures(data: Path) -> list[str]:
    """Return the paths of 60 stamps that nothing was ever captioned or chosen with.

    The first sample of 60 was in sight when the temperature was chosen, so it is left out.
    """
    unused = unused_stamps(data)
    seen = set(random.Random(3).sample(unused, NUM_STUDY))
    return random.Random(4).sample([path for path in unused if path not in seen], NUM_STUDY)


def unused_stamps(data: Path) -> list[str]:
    """Return the paths of all stamps that neither `stamps.py` nor the search budget captions."""
    sys.path.insert(0, str(REPOSITORY / "training"))
    from image_data import list_stamps

    taken = {path for path, _ in chosen_stamps(data)}
    stamps = [item.path for item in list_stamps(data)[0] if item.path not in taken]
    budget = set(random.Random(1).sample(stamps, NUM_PICTURES))  # As in `budget_problems`.
    return [path for path in stamps if path not in budget]


def study(
    models: CaptionModels, journal: Journal, data: Path, pictures: Sequence[str], weight: float
) -> None:
    """Caption pictures in three tones and write down what is not in the journal."""
    left = [p for p in pictures if any(f"{weight:g} {t} {p}" not in journal for t in TONES)]
    settings = CaptionSettings(sentiment=TONES[0], weights={"sentiment": weight})
    for start in range(0, len(left), GROUP):
        asked = [(p, t) for p in left[start : start + GROUP] for t in TONES]
        problems = [
            Problem(f"{t}:{p}", {"image": open_on_white(data / p), "sentiment": t}, settings.prefix)
            for p, t in asked
        ]
        began = time.monotonic()
        results = minimize(objective_of(settings, models), method_of(settings), problems)
        print(f"{(time.monotonic() - began) / len(asked):.1f} s a caption", file=sys.stderr)
        found = classify(models, [result.text for result in results])
        for (picture, tone), result, label in zip(asked, results, found, strict=True):
            terms = {name: round(float(value), 4) for name, value in result.terms.items()}
            row = {"picture": picture, "tone": tone, "weight": weight, "text": result.text}
            journal.append(f"{weight:g} {tone} {picture}", {**row, "classified": label, **terms})


def classify(models: CaptionModels, texts: Sequence[str]) -> list[str]:
    """Return the classifier's most probable label of each text."""
    assert models.sentiment is not None
    tokenizer = models.sentiment.tokenizer
    ids = PaddedIds.from_lists(
        [tokenizer.add_special_tokens(tokenizer.encode(text)) for text in texts]
    )
    with torch.no_grad():
        best = models.sentiment.outputs(ids).argmax(dim=-1).tolist()
    return [models.sentiment.labels[i].lower() for i in best]


def meets_rule(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a weight is enough and not too much.

    At least 95 % of the positive and negative captions are so by the classifier, and their image
    distance is on average at most 10 % above that of the neutral captions of the same pictures.
    """
    toned = [row for row in rows if row["tone"] != "neutral"]
    neutral = [row for row in rows if row["tone"] == "neutral"]
    right = mean([row["classified"] == row["tone"] for row in toned])
    return right >= 0.95 and mean([r["image"] for r in toned]) <= 1.1 * mean(
        [r["image"] for r in neutral]
    )


def report_tuning(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a line per weight and tone, and whether the weight meets the rule."""
    for weight in sorted({row["weight"] for row in rows}):
        here = [row for row in rows if row["weight"] == weight]
        print(json.dumps({"weight": weight, "meets_rule": meets_rule(here)}))
        summarise(here)
    for row in rows:
        print(f"{row['weight']:g} {row['tone']}: {row['text']}")


def report(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the tables of the study, with what each tone costs, and captions drawn at random."""
    pictures = list(dict.fromkeys(row["picture"] for row in rows))
    by_key = {(row["picture"], row["tone"]): row for row in rows}
    whole = [p for p in pictures if all((p, tone) in by_key for tone in TONES)]
    print(json.dumps({"pictures": len(whole), "weights": sorted({r["weight"] for r in rows})}))
    summarise([by_key[p, tone] for p in whole for tone in TONES])
    for tone in TONES[:2]:
        for term in ("image", "fluency"):
            neutral = [by_key[p, "neutral"][term] for p in whole]
            toned = [by_key[p, tone][term] for p in whole]
            difference = [a - b for a, b in zip(toned, neutral, strict=True)]
            low, high = (round(bound, 3) for bound in interval(difference))
            shown = {"mean": round(mean(difference), 3), "low": low, "high": high}
            ratio = round(mean(toned) / mean(neutral) - 1, 3)
            print(json.dumps({f"{term}, {tone} - neutral": shown, "relative": ratio}))
    every = [(p, tone) for p in sorted(whole) for tone in TONES]
    for p, tone in random.Random(0).sample(every, min(NUM_SHOWN, len(every))):
        print(f"| {Path(p).stem} | {tone} | {by_key[p, tone]['text']} |")


def summarise(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a line per tone: means, the three judges, the most frequent sentiment word."""
    judges = Judges()
    for tone in TONES:
        here = [row for row in rows if row["tone"] == tone]
        if not here:
            continue
        judged = [judges.judge(row["text"]) for row in here]
        known = [one["afinn"] == tone for one in judged if one["afinn"] is not None]
        word, share = most_frequent_word([one["words"] for one in judged])
        line = {
            "tone": tone,
            "captions": len(here),
            "classifier": round(mean([row["classified"] == tone for row in here]), 3),
            "vader": round(mean([one["vader"] == tone for one in judged]), 3),
            "vader_split": round(mean([one["vader_split"] == tone for one in judged]), 3),
            "afinn": round(mean(known), 3) if known else None,
            "afinn_knows": len(known),
            "word": word,
            "share": round(share, 3),
            **{n: round(mean([r[n] for r in here]), 3) for n in ("fluency", "image", "sentiment")},
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
