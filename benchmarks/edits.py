"""Does a gradient help where a text is edited, rather than grown? Methods at equal CPU seconds.

Each of 40 texts is the target of `TextSimilarity` (weight 20) beside `Fluency`, offline models. An
arm gets the same CPU seconds per text, one thread, from the same random start (AutoDAN: from
nothing); local search after AutoDAN gets as many again. Run it with
`python -m benchmarks.edits run --journal FILE [--shard i/n]`, then `table`.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.bootstrap import interval
from benchmarks.journal import Journal, shard
from fuseprompt.methods import GCG, AutoDAN, LocalSearch, RandomSearch
from fuseprompt.models.hub import load
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency, TextSimilarity
from fuseprompt.proposals import Fuse, Gradient
from fuseprompt.search.minimize import Progress, Result, minimize

RESULTS = Path(__file__).parent / "results"
JOURNAL = RESULTS / "edits.jsonl.gz"

#: Sentences of the maintainers, on things that people write about.
SENTENCES = (
    "I cannot reset the password of my email account.",
    "The committee postponed the vote until next week.",
    "Our flight was delayed because of heavy snow.",
    "She forgot her umbrella on the train this morning.",
    "The new phone has a better camera but a weak battery.",
    "Please send me the invoice before Friday.",
    "The soup was cold and the waiter was rude.",
    "Scientists found traces of water on the moon.",
    "He plays the violin in a small orchestra.",
    "The price of bread has doubled since last year.",
    "Children learn to read faster with short stories.",
    "The bridge was closed after the storm damaged it.",
    "My laptop gets hot when I watch videos.",
    "The museum opens at nine and closes at five.",
    "They painted the kitchen walls yellow.",
    "The doctor told him to drink more water.",
    "Our team lost the match in the last minute.",
    "The garden needs rain after this dry summer.",
    "You can pay by card or in cash.",
    "The teacher explained the rule with an example.",
)


def captions() -> list[str]:
    """Return twenty captions of the fidelity study."""
    rows = (Path(__file__).parent / "data" / "fidelity_captions.tsv").read_text().splitlines()
    return [row.split("\t")[-1] for row in rows[:: max(1, len(rows) // 20)]][:20]


#: The arm that begins with what AutoDAN found.
AFTER = "local search after autodan"

#: The methods, each with more steps than the time allows.
ARMS: dict[str, Callable[[], Any]] = {
    "autodan": lambda: AutoDAN(steps=14),
    "local search after autodan": lambda: LocalSearch(steps=1000),
    "local search": lambda: LocalSearch(steps=1000, restarts=1000),
    "gcg additive": lambda: GCG(steps=1000),
    "gcg gradient": lambda: GCG(steps=1000, proposal=Gradient()),
    "gcg fuse": lambda: GCG(steps=1000, proposal=Fuse()),
    "gcg gradient, 1 point": lambda: GCG(steps=1000, proposal=Gradient(num_words=1)),
    "gcg fuse, 1 point": lambda: GCG(steps=1000, proposal=Fuse(num_words=1)),
    "gcg additive, 3 steps": lambda: GCG(steps=3),
    "random search": lambda: RandomSearch(steps=1000),
}


def run(journal: Journal, part: str, seconds: float, arms: list[str]) -> None:
    """Search every text with every arm, and write a line for each."""
    torch.set_num_threads(1)
    lm, encoder = load("offline:lm"), load("offline:sentence")
    objective = Objective([Fluency(lm), TextSimilarity(encoder, weight=20)])
    texts = [*captions(), *SENTENCES]
    for arm in arms:  # What lasts for a pair of models is not what is measured.
        minimize(objective, ARMS[arm](), time_limit=0.01, text="a dog")
    for text in shard(texts, part):
        for arm in arms:
            key = f"{arm}: {text}"
            if key in journal:
                continue
            problem, before = Problem(text, {"text": text}), {}
            if arm == AFTER:
                (grown,) = minimize(objective, ARMS["autodan"](), problem)
                problem = Problem(text, {"text": text}, start=grown.text)
                before = {"before": round(grown.loss, 4), "before_text": grown.text}
            started = time.process_time()

            def on_step(_: Progress, started: float = started) -> bool:
                return time.process_time() - started > seconds

            (result,) = minimize(objective, ARMS[arm](), problem, on_step=on_step)
            row = _row(arm, text, result, time.process_time() - started)
            journal.append(key, {**row, **before})


def _row(arm: str, target: str, result: Result, seconds: float) -> dict[str, Any]:
    return {
        "arm": arm,
        "target": target,
        "text": result.text,
        "loss": round(result.loss, 4),
        **{name: round(value, 4) for name, value in result.terms.items()},
        "steps": result.history[-1].step if result.history else 0,
        "evaluations": sum(entry.evaluations for entry in result.history),
        "cpu_seconds": round(seconds, 2),
    }


def table(journal: Journal) -> str:
    """Return means, paired differences to GCG with the additive table, and the worst texts."""
    rows = list(journal.rows.values())
    by_arm = {arm: {r["target"]: r for r in rows if r["arm"] == arm} for arm in ARMS}
    by_arm = {arm: found for arm, found in by_arm.items() if found}
    shared = set.intersection(*(set(found) for found in by_arm.values()))
    targets = [t for t in (*captions(), *SENTENCES) if t in shared]
    base = by_arm["gcg additive"]
    lines = [
        f"{len(targets)} texts; loss = fluency + 20 x similarity; differences to GCG with the "
        "additive table, with 95 % bootstrap intervals over texts.",
        "",
        "| arm | loss | fluency | similarity | difference | worst loss | steps | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, found in by_arm.items():
        mine = [found[t] for t in targets]

        def mean(name: str, mine: list[dict[str, Any]] = mine) -> float:
            return sum(r[name] for r in mine) / len(mine)

        paired = [found[t]["loss"] - base[t]["loss"] for t in targets]
        low, high = interval(paired) if arm != "gcg additive" else (0.0, 0.0)
        lines.append(
            f"| {arm} | {mean('loss'):.2f} | {mean('fluency'):.2f} | {mean('similarity'):.3f} | "
            f"{sum(paired) / len(paired):+.2f} [{low:+.2f}, {high:+.2f}] | "
            f"{max(r['loss'] for r in mine):.1f} | {mean('steps'):.0f} | "
            f"{mean('cpu_seconds'):.1f} |"
        )
    if AFTER in by_arm:
        pairs = [(by_arm[AFTER][t]["before"], by_arm[AFTER][t]["loss"]) for t in targets]
        better, worse = sum(b - a > 1e-4 for b, a in pairs), sum(a - b > 1e-4 for b, a in pairs)
        mean = sum(a - b for b, a in pairs) / len(pairs)
        low, high = interval([a - b for b, a in pairs])
        lines += ["", f"Local search after AutoDAN: better {better}, worse {worse} times; "]
        lines[-1] += f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]."
    lines += ["", "Worst texts of each arm:", ""]
    for arm, found in by_arm.items():
        worst = sorted((found[t] for t in targets), key=lambda r: -r["loss"])[:3]
        lines += [f"* {arm}: {r['target']} -> {r['text']} ({r['loss']:.2f})" for r in worst]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run arms, or print the table of a journal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("run", "table"))
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=list(ARMS))
    options = parser.parse_args()
    journal = Journal(options.journal)
    if options.do == "run":
        run(journal, options.shard, options.seconds, options.arms)
    else:
        print(table(journal), end="")


if __name__ == "__main__":
    main()
