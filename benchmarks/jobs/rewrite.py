"""Rewriting opinions: our edits against the language model's own, word swaps, AutoDAN and TROPT.

Sixty sentences of films and products, thirty a label, that the classifier was not trained on, are
to get the other label. Ours goes first; each rival then has the CPU seconds that ours took for the
same sentence, one thread. Success is defined by `is_success`; VADER and AFINN look on.

    python training/fetch_data.py --data DATA    # or unpack vaderSentiment 0.5 to DATA/vader
    python -m benchmarks.jobs.rewrite run --data DATA --journal FILE [--arms NAME ...]
    python -m benchmarks.jobs.rewrite look --journal FILE    # where vaderSentiment and afinn are
    python -m benchmarks.jobs.rewrite table --journal FILE

TROPT 0.1.1 needs an environment of its own, in which this package can be imported, too.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.bootstrap import interval
from benchmarks.journal import Journal
from fuseprompt.evaluation.metrics.judges import find_judge
from fuseprompt.methods import AutoDAN, EditBeam
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem, count_changed, list_words
from fuseprompt.proposals import LanguageModelOnly
from fuseprompt.search.minimize import Progress, iterate
from fuseprompt.tasks.job import Failure
from fuseprompt.tasks.rewrite import objective_of, rewrite
from fuseprompt.tasks.settings import RewriteSettings
from fuseprompt.text.retokenize import encode_whole

RESULTS = Path(__file__).parents[1] / "results"
JOURNAL = RESULTS / "rewrite.jsonl.gz"
OTHER: Final = {"positive": "negative", "negative": "positive"}
OURS: Final = "fuseprompt rewrite"
ARMS: Final = (
    OURS,
    "language model alone",
    "word swaps",
    "AutoDAN from scratch",
    "TROPT GCG",
    "TROPT HotFlip",
)
KEEP, MAX_CHANGED, LESS_FLUENT = 0.75, 0.4, 0.5

#: Neighbours of a word that are tried in its place, as TextFooler does (Jin et al., 2020).
NUM_NEIGHBOURS: Final = 50


def read_items(data: Path, split: str, count: int, classifier: Any) -> list[tuple[str, str]]:
    """Return sentences of a split and the label to give them, labels in turn."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "training"))
    from sentiment_data import load_rated

    rows = [
        (one.text, "positive" if one.rating > 0 else "negative")
        for one in load_rated(data)[split]
        if one.source in ("movie", "amazon")
        and abs(one.rating) >= 1.5
        and 6 <= len(one.text.split()) <= 20
        and one.text[-1] in ".!?"
        and "  " not in one.text
        and one.text.isascii()
    ]
    random.Random(0).shuffle(rows)
    found: dict[str, list[str]] = {label: [] for label in OTHER}
    for text, label in rows:
        if len(found[label]) < count and labels_of(classifier, [text]) == [label]:
            found[label].append(text)
    pairs = zip(found["positive"], found["negative"], strict=True)
    return [one for good, bad in pairs for one in ((good, "negative"), (bad, "positive"))]


def labels_of(classifier: Any, texts: Sequence[str]) -> list[str]:
    """Return the classifier's label of each text."""
    with torch.no_grad():
        logits = classifier.outputs(encode_whole(classifier.tokenizer, texts))
    return [classifier.labels[i].lower() for i in logits.argmax(dim=1).tolist()]


class Scorer:
    """The figures of a text, the same for every arm."""

    def __init__(self, objective: Objective) -> None:
        """Take the models from our objective."""
        self.objective = objective
        self.similarity, self.label = objective.terms[0], objective.terms[1]
        self.classifier: Any = self.label.model
        # Neighbours in the classifier's own embeddings, each of them a whole word.
        self.vocabulary = torch.nn.functional.normalize(self.classifier.vocabulary.float(), dim=1)

    def figures(self, original: str, text: str) -> dict[str, Any]:
        """Return what success is made of."""
        encoded = encode_whole(self.similarity.model.tokenizer, [original, text])
        with torch.no_grad():
            a, b = self.similarity.model.outputs(encoded)
        fluency = self.objective.fluency.evaluate([original, text], [Problem("0"), Problem("1")])
        return {
            "text": text,
            "label": labels_of(self.classifier, [text])[0],
            "similarity": round(float(a @ b), 4),
            "changed": round(count_changed(original, text) / max(1, len(list_words(original))), 4),
            "less_fluent": round(fluency[1] - fluency[0], 4),
        }

    def best(self, original: str, label: str, texts: Sequence[str]) -> dict[str, Any]:
        """Return the figures of a success among texts, else of the last one with the label."""
        right = [
            text
            for text, own in zip(texts, labels_of(self.classifier, texts), strict=True)
            if own == label
        ]
        rows = [self.figures(original, text) for text in (right or texts)[-20:]]
        return next((row for row in rows if is_success({**row, "asked": label})), rows[-1])


def is_success(row: dict[str, Any]) -> bool:
    """Return whether a text has the label and keeps to all bounds."""
    return bool(
        row["label"] == row["asked"]
        and row["similarity"] >= KEEP - 1e-4
        and row["changed"] <= MAX_CHANGED
        and row["less_fluent"] <= LESS_FLUENT + 1e-4
    )


def swaps(scorer: Scorer, original: str, label: str, seconds: float) -> list[str]:
    """Return the texts of greedy word swaps: the most important word first, scored exactly.

    A word is important as far as the label's loss falls where it is left out. Of the neighbours
    that keep similarity the one that gets the label with most similarity is taken, else that with
    the lowest loss.
    """
    started, words = time.process_time(), original.split()
    index = torch.zeros(1, dtype=torch.long)
    bound = scorer.objective.bind([Problem("0", _targets(original, label), start=original)])
    similarity, target = bound.terms[0], bound.terms[1]

    def losses(texts: list[str]) -> tuple[list[float], list[float]]:
        same = index.expand(len(texts))
        return target.evaluate(texts, same).tolist(), similarity.evaluate(texts, same).tolist()

    without = [" ".join([*words[:i], *words[i + 1 :]]) for i in range(len(words))]
    order = sorted(range(len(words)), key=losses(without)[0].__getitem__)
    texts, tokenizer = [original], scorer.classifier.tokenizer
    for i in order[: int(MAX_CHANGED * len(words))]:
        core = words[i].strip(".,;:!?\"'()")
        ids = tokenizer.encode(core.lower())
        if time.process_time() - started > seconds:
            break
        if len(ids) != 1:
            continue
        near = torch.topk(scorer.vocabulary @ scorer.vocabulary[ids[0]], 4 * NUM_NEIGHBOURS)
        known = (tokenizer.decode([n]).strip() for n in near.indices.tolist())
        new = [w for w in known if w.isalpha() and w != core.lower()][:NUM_NEIGHBOURS]
        tried = [
            " ".join([*words[:i], words[i].replace(core, w.capitalize() if core.istitle() else w)])
            + "".join(f" {rest}" for rest in words[i + 1 :])
            for w in new
        ]
        if not tried:
            continue
        loss, apart = losses(tried)
        kept = [n for n in range(len(tried)) if apart[n] <= 1 - KEEP]
        own = labels_of(scorer.classifier, tried)
        flipped = [n for n in kept if own[n] == label]
        if flipped:
            return [*texts, tried[min(flipped, key=apart.__getitem__)]]
        if kept:
            best = min(kept, key=loss.__getitem__)
            words = tried[best].split()
            texts.append(tried[best])
    return texts


def searched(objective: Objective, method: Any, problem: Problem, seconds: float) -> list[str]:
    """Return the texts of a search of so many CPU seconds, the best one last."""
    started = time.process_time()

    def on_step(_: Progress) -> bool:
        return time.process_time() - started > seconds

    result = next(iterate(objective, method, [problem], on_step=on_step))
    return [one.text for one in (*reversed(result.alternatives), result)]


class Tropt:
    """TROPT's optimisers on the same classifier, from the original text, which is all trigger."""

    def __init__(self) -> None:
        """Load the classifier as TROPT does."""
        from benchmarks.jobs.elicit_rivals import allow_slices

        allow_slices()
        from tropt.model.huggingface.classifier import ClassifierHFModel

        from fuseprompt.offline.manifest import offline_folder

        folder = str(offline_folder("sentiment"))
        self.model = ClassifierHFModel(model_name=folder, device="cpu")

    def texts(self, name: str, original: str, wanted: int, seconds: float) -> list[str]:
        """Return the text of every step of so many CPU seconds."""
        from tropt.common import Targets
        from tropt.loss import MisclassCELoss
        from tropt.optimizer.gcg_optimizer import GCGOptimizer
        from tropt.optimizer.hotflip_optimizer import HotFlipOptimizer
        from tropt.optimizer.utils.token_constraints import TokenConstraints
        from tropt.tracker import BaseTracker

        started, found = time.process_time(), [original]

        class Log(BaseTracker):  # type: ignore[misc]
            def _init(self, config: Any) -> None: ...

            def _log(self, data: dict[str, Any]) -> None:
                found.append(_with_case(original, data["trigger_str"]))
                if time.process_time() - started > seconds:
                    raise TimeoutError

            def _finish(self, summary: Any = None) -> None: ...

        rules = TokenConstraints(disallow_non_ascii=True, disallow_special_tokens=True)
        options = {"loss": MisclassCELoss(targeted=True), "tracker": Log(), "seed": 0}
        options |= {"num_steps": 500, "token_constraints": rules, "model": self.model}
        kind = GCGOptimizer if name == "TROPT GCG" else HotFlipOptimizer
        with suppress(TimeoutError):
            kind(**options).optimize_trigger(
                templates=["{{OPTIMIZED_TRIGGER}}"],
                targets=Targets(target_class_idx=[wanted]),
                initial_trigger=original,
            )
        return found


def _with_case(original: str, text: str) -> str:
    """Return a text of an uncased tokenizer with the original's words as they were written."""
    written = {w.strip(".,;:!?\"'()").lower(): w.strip(".,;:!?\"'()") for w in original.split()}
    words = []
    for word in text.split():
        core = word.strip(".,;:!?\"'()")
        words.append(word.replace(core, written.get(core, core)) if core else word)
    return " ".join(words)


def _targets(text: str, label: str) -> dict[str, Any]:
    return {"text": text, "label": label, "opinion": [("{}\nSentiment:", f" {label}")]}


def run(journal: Journal, data: Path, count: int, arms: Sequence[str]) -> None:
    """Search every sentence with every arm, ours first, and write a line for each."""
    torch.set_num_threads(1)
    settings = {label: RewriteSettings(label=label, device="cpu") for label in OTHER}
    objective = objective_of(settings["positive"])
    scorer = Scorer(objective)
    items = read_items(data, "test", count // 2, scorer.classifier)
    free = Objective([objective.fluency, *objective.terms])
    tropt = Tropt() if any(arm.startswith("TROPT") for arm in arms) else None
    # What lasts for a pair of models is not what is measured.
    next(rewrite("The cat is nice.", settings["negative"], objective=objective))
    for todo in ([OURS], [arm for arm in arms if arm != OURS]):
        for original, label in items:
            for arm in todo:
                key = f"{arm}: {original}"
                if key in journal:
                    continue
                started = time.process_time()
                row: dict[str, Any] = {"arm": arm, "original": original, "asked": label}
                if arm == OURS:
                    one = next(rewrite(original, settings[label], objective=objective))
                    assert not isinstance(one, Failure)
                    row |= {"found": one.found, "terms": dict(one.result.terms)}
                    texts = [one.text]
                else:
                    seconds = journal.rows[f"{OURS}: {original}"]["cpu_seconds"]
                    start = Problem("0", _targets(original, label), start=original)
                    if arm == "language model alone":
                        before = objective.fluency.evaluate([original], [start])[0]
                        start = Problem(
                            "0",
                            start.targets,
                            start=original,
                            bounds={"fluency": before + LESS_FLUENT},
                        )
                        method = EditBeam(proposal=LanguageModelOnly(), only_words=True)
                        texts = searched(objective, method, start, seconds)
                    elif arm == "word swaps":
                        texts = swaps(scorer, original, label, seconds)
                    elif arm == "AutoDAN from scratch":
                        begun = Problem("0", _targets(original, label))
                        steps = len(objective.primary.tokenizer.encode(original)) + 2
                        texts = searched(free, AutoDAN(steps=steps), begun, seconds)
                    else:
                        assert tropt is not None
                        names = [name.lower() for name in scorer.classifier.labels]
                        texts = tropt.texts(arm, original, names.index(label), seconds)
                row["cpu_seconds"] = round(time.process_time() - started, 2)
                journal.append(key, {**row, **scorer.best(original, label, texts)})


def look(journal: Journal) -> None:
    """Write what VADER and AFINN call each text, as further rows."""
    judges = {name: find_judge(name) for name in ("vader", "afinn")}
    for key, row in list(journal.rows.items()):
        if not key.startswith("look: ") and f"look: {key}" not in journal:
            seen = {name: judge([row["text"]])[0] for name, judge in judges.items()}
            journal.append(f"look: {key}", seen)


def _read(journal: Journal) -> tuple[list[str], dict[str, dict[str, dict[str, Any]]]]:
    """Return the sentences that all arms have, and the rows of each arm by sentence."""
    by_arm: dict[str, dict[str, dict[str, Any]]] = {}
    for key, row in journal.rows.items():
        if not key.startswith("look: "):
            seen = {k: v for k, v in journal.rows.get(f"look: {key}", {}).items() if k != "key"}
            own = by_arm.setdefault(row["arm"], {})
            own[row["original"]] = {**row, **seen, "success": is_success(row)}
    return list(by_arm[OURS]), {arm: by_arm[arm] for arm in ARMS if arm in by_arm}


def table(journal: Journal) -> str:
    """Return success and its parts with intervals, paired differences, and our ten worst texts."""
    originals, by_arm = _read(journal)
    ours = by_arm[OURS]
    lines = [
        "| arm | sentences | success | ours more by | label | similarity | changed | less fluent | "
        "VADER | AFINN | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm, found in by_arm.items():
        mine = [found[o] for o in originals if o in found]

        def share(values: Iterator[Any], mine: list[dict[str, Any]] = mine) -> str:
            numbers = [float(v) for v in values]
            low, high = interval(numbers)
            return f"{sum(numbers) / len(mine):.2f} [{low:.2f}, {high:.2f}]"

        def mean(name: str, mine: list[dict[str, Any]] = mine) -> float:
            return sum(r[name] for r in mine) / len(mine)

        more = share(ours[r["original"]]["success"] - r["success"] for r in mine)
        looks = [
            share(r[name] == r["asked"] for r in mine) if name in mine[0] else "not looked"
            for name in ("vader", "afinn")
        ]
        lines.append(
            f"| {arm} | {len(mine)} | {share(r['success'] for r in mine)} | "
            f"{'' if arm == OURS else more} | {share(r['label'] == r['asked'] for r in mine)} | "
            f"{mean('similarity'):.2f} | {mean('changed'):.2f} | {mean('less_fluent'):+.2f} | "
            f"{looks[0]} | {looks[1]} | {mean('cpu_seconds'):.1f} |"
        )
    worst = sorted(ours.values(), key=_badness)[-10:]
    lines += ["", "The ten worst of ours, the worst last:", ""]
    for row in worst:
        lines.append(
            f"* {row['original']} -> {row['text']} ({row['label']}, VADER "
            f"{row.get('vader', '?')}, similarity {row['similarity']:.2f}, less fluent by "
            f"{row['less_fluent']:+.2f})"
        )
    return "\n".join(lines) + "\n"


def _badness(row: dict[str, Any]) -> tuple[float, ...]:
    """Return what orders our texts: no success, then the views of those who look on, then terms."""
    looks = sum(row.get(name, row["asked"]) == OTHER[row["asked"]] for name in ("vader", "afinn"))
    return (float(not row["success"]), float(looks), row["terms"].get("opinion", 0.0))


def main() -> None:
    """Run arms, let the lexicons look at the texts, or print the table of a journal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("run", "look", "table"))
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    options = parser.parse_args()
    journal = Journal(options.journal)
    if options.do == "run":
        run(journal, options.data, options.count, options.arms)
    elif options.do == "look":
        look(journal)
    else:
        print(table(journal), end="")


if __name__ == "__main__":
    main()
