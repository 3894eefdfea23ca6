"""Does a gradient help a search? Final loss against what a step may cost, for every proposer.

8 steps, 2 open texts. A budget is the total cost of a step for each open text, in forward
equivalents of the secondary, gradient included. Every arm runs all 8 steps and collects finished
texts on the way. `run` keeps a journal by arm, budget and problem, so it may be stopped at any time
and goes on where it was; `table` prints what a journal holds, by default the one that is kept here.

    python -m benchmarks.search_budget run --data DATA --journal FILE
    python -m benchmarks.search_budget table

Results: benchmarks/results/search-budget.md. Read next: `problems.py`.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.journal import Journal
from benchmarks.search_budget.arms import ARMS, LM
from benchmarks.search_budget.meter import Meter, Scores, metered
from benchmarks.search_budget.problems import Item, all_items, objective, problem
from benchmarks.search_budget.report import table
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.objective.objective import BoundObjective

JOURNAL = Path(__file__).parents[1] / "results" / "search-budget.jsonl.gz"
STEPS, BEAMS = 8, 2
BUDGETS = (16, 64)
#: What the language model's own tokens get besides, to say what another proposer is worth.
MORE = 256
#: A text is never given up, so that every arm takes all steps.
_NEVER = -1e9


def main() -> None:
    """Read the command line, search, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("run", "table"))
    parser.add_argument("--data", type=Path, help="folder of training/fetch_data.py")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--first", type=int, default=40, help="problems from the top of the list")
    args = parser.parse_args()
    journal = Journal(args.journal)
    if args.do == "table":
        print(table(journal), end="")
        return
    if args.data is None:
        parser.error("--data is needed to search")
    torch.set_num_threads(1)
    for item in all_items(args.data, read_captions())[: args.first]:
        run(item, args.data, journal)


def read_captions() -> list[str]:
    """Return the captions that come with the package."""
    from benchmarks.fidelity.contexts import captions

    return [caption for caption, _ in captions()]


def plan(item: Item) -> Iterator[tuple[str, int, str]]:
    """Yield arm, budget and key of every search of a problem."""
    for arm, budget in [*((a, b) for b in BUDGETS for a in ARMS), (LM, MORE)]:
        yield arm, budget, f"{arm}|{budget}|{item.name}"


def run(item: Item, data: Path, journal: Journal) -> None:
    """Search one problem with every arm that the journal lacks."""
    missing = [work for work in plan(item) if work[-1] not in journal]
    if not missing:
        return
    bound, scores = objective(item.kind).bind([problem(item, data)]), Scores()
    for arm, budget, key in missing:
        row = search(bound, ARMS[arm](budget), scores=scores)
        facts = {"arm": arm, "budget": budget, "problem": item.name, "kind": item.kind}
        journal.append(key, facts | row)
        print(key, row["loss"], row["text"], file=sys.stderr, flush=True)


def search(
    bound: BoundObjective, arm: AutoDAN, *, steps: int = STEPS, scores: Scores | None = None
) -> dict[str, Any]:
    """Search one problem and say, after each step, how good the best text is and what it cost.

    Args:
        bound: Objective with the targets of one problem.
        arm: Who proposes, and how much is scored.
        steps: Tokens appended.
        scores: Exact losses that other searches of this problem found.

    Returns:
        The text that the search returns with its exact losses; by step, the loss of the best open
        text, without its end, and the cost so far.
    """
    meter = Meter()
    method = replace(arm, steps=steps, beam_width=BEAMS, ending_nats=_NEVER)
    state = method.init(metered(bound, meter, Scores() if scores is None else scores))
    meter.cost = 0.0
    open_losses: list[float] = []
    costs: list[float] = []
    while not method.is_done(state):
        state = method.step(state)
        if state.num_steps == len(open_losses) or not len(state.active):
            continue
        open_losses.append(round(float(state.active.losses.min()), 4))
        costs.append(meter.cost)
    found = method.finish(state)[0]
    exact_all = bound.evaluate(found.texts, [0] * len(found.texts))
    best, *_ = found.order(exact_all, bound.objective.primary.tokenizer)
    return {
        "text": found.texts[best],
        "loss": round(exact_all[best].loss, 4),
        "terms": {name: round(value, 4) for name, value in exact_all[best].terms.items()},
        "open": open_losses,
        "cost": costs,
    }


if __name__ == "__main__":
    main()
