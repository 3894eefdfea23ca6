"""Labels of groups: 40 clusters of captions, and photos by the noun of their captions.

One caption of each of 20,000 val2014 pictures (a seeded draw; the defaults were chosen on other
pictures) is put into 40 k-means clusters in `offline:sentence`. Half of each cluster is held out
from every arm and measures its labels. Run it with
`python -m benchmarks.jobs.name run --journal FILE [--photos FOLDER]`, then `table`.
"""

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bootstrap import interval
from benchmarks.jobs.captions import read_captions
from benchmarks.journal import Journal, is_named
from fuseprompt.models.base import outputs_of
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import ImageText, TextSimilarity
from fuseprompt.proposals.word_table import WordTable
from fuseprompt.search.minimize import Result, describe, minimize
from fuseprompt.tasks.name import (
    Members,
    auroc,
    choose,
    halve,
    method_of,
    objective_of,
    others_of,
    problem_of,
    read_members,
)
from fuseprompt.tasks.settings import NameSettings

RESULTS = Path(__file__).parents[1] / "results"
JOURNAL = RESULTS / "name.jsonl.gz"

NUM_CAPTIONS, NUM_CLUSTERS = 20_000, 40
OURS = "search, contrast"
ARMS = (OURS, "search, no contrast", "c-TF-IDF, three words", "medoid caption", "one word")

#: Nouns that a photo may be of: the one that most of its five captions have, at least two.
NOUNS = (
    *("airplane", "bear", "bed", "bench", "bicycle", "bird", "boat", "bus", "cake", "cat", "clock"),
    *("cow", "dog", "elephant", "giraffe", "horse", "kitchen", "bathroom", "kite", "motorcycle"),
    *("pizza", "sheep", "sign", "skateboard", "ski", "snow", "surfboard", "tennis", "train"),
    *("truck", "umbrella", "zebra", "baseball", "food", "beach", "street", "man", "woman"),
    *("people", "girl", "boy", "child", "table", "room", "plate", "chair", "desk", "laptop"),
    *("flower", "fruit", "vegetable", "car", "phone", "toilet", "building", "field", "water"),
    *("vase", "bowl", "sandwich", "bike", "tie", "glass", "picture", "city"),
)
FEWEST_PHOTOS = 5


def drawn_captions() -> list[str]:
    """Return one caption of each of the benchmark's pictures."""
    captions = read_captions()
    pictures = sorted(captions)
    random.Random(0).shuffle(pictures)
    return [captions[picture][0] for picture in pictures[:NUM_CAPTIONS]]


def k_means(vectors: torch.Tensor, count: int, *, steps: int = 30, seed: int = 0) -> torch.Tensor:
    """Return the cluster of each direction, by cosine."""
    generator = torch.Generator().manual_seed(seed)
    centres = vectors[torch.randperm(len(vectors), generator=generator)[:count]]
    for _ in range(steps):
        nearest = (vectors @ centres.T).argmax(dim=1)
        means = [
            vectors[nearest == i].mean(0) if (nearest == i).any() else centres[i]
            for i in range(count)
        ]
        moved = torch.nn.functional.normalize(torch.stack(means), dim=1)
        if torch.allclose(moved, centres):
            break
        centres = moved
    return (vectors @ centres.T).argmax(dim=1)


def caption_groups(model: Any, keep: Path) -> dict[str, Members]:
    """Return the clusters, half of each held out; vectors are kept in a file."""
    texts = drawn_captions()
    if not keep.exists():
        torch.save(outputs_of(model, texts), keep)
    vectors = torch.load(keep, weights_only=True)
    cluster = k_means(vectors, NUM_CLUSTERS)
    groups = {}
    for i in range(NUM_CLUSTERS):
        rows = torch.nonzero(cluster == i).flatten().tolist()
        groups[f"cluster {i}"] = halve([texts[row] for row in rows], vectors[rows], seed=0)
    return groups


def photo_groups(model: Any, root: Path) -> tuple[dict[str, Members], dict[str, list[str]]]:
    """Return photos by the noun of their captions, and the captions of those known."""
    content = json.loads(next((root / "annotations").glob("captions*.json")).read_text())
    names = {one["id"]: root / "val2014" / one["file_name"] for one in content["images"]}
    captions: dict[int, list[str]] = {}
    for one in content["annotations"]:
        captions.setdefault(one["image_id"], []).append(one["caption"])
    photos: dict[str, list[Path]] = {}
    of: dict[Path, list[str]] = {}
    for photo, texts in sorted(captions.items()):
        counts = {noun: sum(is_named(t, [noun]) for t in texts) for noun in NOUNS}
        noun = max(counts, key=counts.__getitem__)
        of[names[photo]] = texts
        if counts[noun] >= 2:
            photos.setdefault(noun, []).append(names[photo])
    chosen = {noun: files for noun, files in photos.items() if len(files) >= FEWEST_PHOTOS}
    members, _ = read_members(chosen, model, seed=0)
    known = {noun: [t for file in m.known for t in of[file]] for noun, m in members.items()}
    return members, known


def three_words(group: str, texts: Mapping[str, Sequence[str]]) -> str:
    """Return the words with the highest c-TF-IDF (Grootendorst, 2022), as BERTopic has it."""
    counts = {g: Counter(w for t in each for w in _words(t)) for g, each in texts.items()}
    total: Counter[str] = Counter()
    for each in counts.values():
        total.update(each)
    mean = total.total() / len(counts)
    own = counts[group]
    weights = {w: n / own.total() * np.log(1 + mean / total[w]) for w, n in own.items()}
    return " ".join(sorted(weights, key=lambda w: (-weights[w], w))[:3])


def _words(text: str) -> list[str]:
    # CountVectorizer's words: two letters or more, in lower case.
    return re.findall(r"\b\w\w+\b", text.lower())


def run(args: argparse.Namespace) -> None:
    """Write a row for each group and arm that the journal lacks."""
    torch.set_num_threads(args.threads)
    journal, settings = Journal(args.journal), NameSettings()
    for kind in ("photos", "captions"):
        if kind == "photos" and args.photos is None:
            continue
        objective = objective_of(settings, sees_pictures=kind == "photos")
        model: Any = objective.terms[0].model
        if kind == "photos":
            members, texts = photo_groups(model, args.photos)
        else:
            members = caption_groups(model, args.vectors)
            texts = {group: list(each.known) for group, each in members.items()}
        for group, arm, label, seconds in _labels(
            kind, members, texts, objective, settings, journal
        ):
            row = {"kind": kind, "group": group, "arm": arm, "label": label, "seconds": seconds}
            row |= _measure(group, members, label, objective)
            journal.append(f"{kind}:{group}:{arm}", row)


def _labels(
    kind: str,
    members: Mapping[str, Members],
    texts: Mapping[str, Sequence[str]],
    objective: Objective,
    settings: NameSettings,
    journal: Journal,
) -> Iterator[tuple[str, str, str, float]]:
    contrast: Any = objective.terms[0]
    # Without contrast: near to the own group, whatever the others are; same weight on a cosine.
    near = TextSimilarity if kind == "captions" else ImageText
    slope = contrast.weight / contrast.temperature
    alone = Objective(
        [objective.fluency, near(contrast.model, weight=slope, name="near", target="near")],
        constraints=objective.constraints,
    )
    table = WordTable().init(objective.primary, contrast.model, objective.table(contrast))
    words = {row: token for token, row in enumerate(table.row_of.tolist()) if row >= 0}
    method = method_of(settings)

    def search(problem: Problem, under: Objective) -> Result:
        return minimize(under, method, problem, seed=settings.seed)[0]

    def ours(problem: Problem, group: str) -> str:
        return choose(search(problem, objective), group, members, contrast.model)[0].text

    # The other search comes last, so that a run that is cut short has all else of every group.
    passes = [*enumerate(members), *enumerate(members)]
    for place, (number, group) in enumerate(passes):
        problem = problem_of(number, group, members, objective.primary)
        own = replace(problem, targets={"near": members[group].towards})

        def one_word(problem: Problem = problem) -> str:
            bound = objective.bind([problem]).terms[0]
            losses = bound.compare(table.vectors, torch.zeros(len(table.vectors), dtype=torch.long))
            token = words[int(losses.argmin())]
            return objective.primary.tokenizer.token_texts[token].strip()

        arms: dict[str, Callable[[], str]] = {
            OURS: lambda p=problem, g=group: ours(p, g),
            "search, no contrast": lambda p=own: search(p, alone).text,
            "c-TF-IDF, three words": lambda g=group: three_words(g, texts),
            "medoid caption": lambda g=group: texts[g][0],
            "one word": one_word,
        }
        for arm, make in arms.items():
            if (arm == "search, no contrast") != (place >= len(members)):
                continue
            if f"{kind}:{group}:{arm}" not in journal:
                started = time.process_time()
                label = make()
                yield group, arm, label, round(time.process_time() - started, 2)


def _measure(
    group: str, members: Mapping[str, Members], label: str, objective: Objective
) -> dict[str, Any]:
    nearest = others_of(group, members)[0]
    vector = outputs_of(objective.terms[0].model, [label])[0]  # type: ignore[arg-type]
    own = members[group].held @ vector
    others = torch.cat([each.held for other, each in members.items() if other != group])
    return {
        "nearest": nearest,
        "auroc": auroc(own, others @ vector),
        "auroc_nearest": auroc(own, members[nearest].held @ vector),
        "fluency": objective.fluency.evaluate([label], [Problem("plain")])[0],
        "words": len(label.split()),
    }


_PAGE = """# Labels of groups

Made by `python -m benchmarks.jobs.name table > benchmarks/results/name.md` from `name.jsonl.gz`,
which `python -m benchmarks.jobs.name run --journal FILE --photos FOLDER` wrote: one thread, on a
busy machine (CPU seconds count).

Ours: the defaults, `{method}`. Without contrast: the same search after the same words, but near to
the own group alone, with the slope that the contrast has at most. c-TF-IDF and the medoid read all
known texts; the one word is the best of the word table by our loss. Every arm knows the same half
of a group. Fluency: nats a token of the label alone, with its end, by the language model that
writes; an AUROC is of held-out members. Differences are ours minus theirs, paired over groups, with
95 % bootstrap intervals. Of a photo, c-TF-IDF and the medoid have the captions of people.
"""


def table(journal: Journal) -> str:
    """Return the page."""
    lines = [_PAGE.format(method=describe(method_of(NameSettings())))]
    for kind, title in (("captions", "Clusters of captions"), ("photos", "Photos by noun")):
        rows = [row for row in journal.rows.values() if row["kind"] == kind]
        if rows:
            lines += [f"## {title}", "", *_table(rows), "", *_worst(rows), ""]
    return "\n".join(lines).rstrip()


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    by_arm = {arm: {r["group"]: r for r in rows if r["arm"] == arm} for arm in ARMS}
    ours = by_arm[OURS]
    keys = {"auroc_nearest": 3, "auroc": 3, "fluency": 2}
    names = " | ".join(f"{key} | difference" for key in keys)
    yield f"| label | groups | {names} | words | CPU s |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for arm, them in by_arm.items():
        groups = [g for g in ours if g in them]
        cells = []
        for key, digits in keys.items():
            cells.append(f"{np.mean([them[g][key] for g in groups]):.{digits}f}")
            differences = [ours[g][key] - them[g][key] for g in groups]
            low, high = interval(differences)
            mean = f"{np.mean(differences):+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
            cells.append("" if arm == OURS else mean)
        words, seconds = (np.mean([them[g][k] for g in groups]) for k in ("words", "seconds"))
        yield f"| {arm} | {len(groups)} | {' | '.join(cells)} | {words:.1f} | {seconds:.1f} |"


def _worst(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    ours = {r["group"]: r for r in rows if r["arm"] == OURS}
    words = {r["group"]: r["label"] for r in rows if r["arm"] == "c-TF-IDF, three words"}
    yield "All labels, the worst against the nearest group first:"
    yield ""
    yield "| label | nearest | all | c-TF-IDF of the group | of the nearest |"
    yield "|---|---|---|---|---|"
    for row in sorted(ours.values(), key=lambda r: r["auroc_nearest"]):
        own, near = words.get(row["group"], ""), words.get(row["nearest"], "")
        scores = f"{row['auroc_nearest']:.3f} | {row['auroc']:.3f}"
        yield f"| {row['label']} | {scores} | {own} | {near} |"


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--vectors", type=Path, default=Path("/tmp/name-vectors.pt"))
    parser.add_argument("--photos", type=Path, default=None)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.what == "run":
        run(args)
    else:
        print(table(Journal(args.journal)))


if __name__ == "__main__":
    main()
