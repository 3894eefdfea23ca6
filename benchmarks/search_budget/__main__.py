"""Does a gradient help a search? Final loss against what a step may cost, for every proposer.

40 problems, 8 steps, 2 beams. A budget is the total cost of a step for each open text, in forward
equivalents of the secondary, gradient included. Every arm runs all 8 steps and collects finished
texts on the way. Work is journalled by (arm, budget, problem), so it may be stopped at any time and
goes on where it was; exact scores are shared through the disk.

    python -m benchmarks.search_budget --data DATA --run FOLDER --hours 2
    python -m benchmarks.search_budget --run FOLDER --report benchmarks/results/search-budget.md
    python -m benchmarks.search_budget --shipped --run FOLDER --budgets 16 64

The journal of the last one is benchmarks/results/shipped-sentiment.jsonl.gz.

Results: benchmarks/results/search-budget.md. Read next: `problems.py`.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.journal import Journal
from benchmarks.search_budget.arms import ARMS, EVERYTHING, LM, MAIN_ARMS
from benchmarks.search_budget.meter import Meter, metered, rate
from benchmarks.search_budget.problems import (
    SHIPPED,
    Item,
    all_items,
    objective,
    pilot_items,
    problem,
    tone_items,
)
from fuseprompt.methods.autodan import AutoDAN, AutoDANState
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.text.retokenize import PaddedIds

STEPS, BEAMS = 8, 2
#: A text is never given up, so that every arm takes all steps.
_NEVER = -1e9
#: Texts of a secondary that go through it at once when its rate is measured.
_ROWS = 32
_LM_CURVE = ((512, (LM,)), (16, (LM,)), (256, (LM,)))
_FIRST_ARMS = tuple(arm for arm in MAIN_ARMS if not arm.startswith("random"))
_KEY_ARMS = ("table", "anchored words", "direct")
#: How many problems, and what is run for five of them at a time; one sweep after the other, so that
#: a part of all is useful.
SWEEPS: Sequence[tuple[int, Sequence[tuple[int, Sequence[str]]]]] = (
    (20, ((64, _FIRST_ARMS), *_LM_CURVE)),
    (20, ((16, _KEY_ARMS), (256, _KEY_ARMS))),
    (40, ((64, _FIRST_ARMS), *_LM_CURVE)),
    (10, ((16, MAIN_ARMS), (64, MAIN_ARMS), (256, MAIN_ARMS))),
    (40, ((64, MAIN_ARMS), *_LM_CURVE)),
    (40, ((16, MAIN_ARMS), (256, MAIN_ARMS))),
    (40, tuple((budget, tuple(ARMS)) for budget in (64, 16, 256))),
)
_BLOCK = 5
NUM_EVERYTHING = 5


@dataclass(frozen=True)
class Work:
    """One search.

    Attributes:
        arm: Name of the arm.
        budget: Forward equivalents for each open text and step.
        item: The problem.
    """

    arm: str
    budget: int
    item: Item

    @property
    def key(self) -> str:
        """Name in the journal."""
        return f"{self.arm}|{self.budget}|{self.item.name}"


def main() -> None:
    """Read the command line, search, or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--run", type=Path, required=True, help="folder of journal and scores, or a journal"
    )
    parser.add_argument("--data", type=Path, help="folder of training/fetch_data.py")
    parser.add_argument("--hours", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--arms", nargs="+", default=[*ARMS, "everything"], help="only these")
    parser.add_argument("--budgets", nargs="+", type=int, default=[16, 64, 256, 512])
    parser.add_argument("--first", type=int, default=40, help="problems from the top of the list")
    parser.add_argument("--pilot", action="store_true", help="tuning pictures in place of problems")
    parser.add_argument("--shipped", action="store_true", help="only tones, as captions have them")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", type=Path, help="write page and plot of a journal")
    args = parser.parse_args()
    journal = Journal(args.run if args.run.is_file() else args.run / "journal.jsonl")
    if args.report is not None:
        from benchmarks.search_budget.report import write, write_shipped

        (write_shipped if args.shipped else write)(journal, args.report)
        return
    if args.data is None and not args.shipped:
        parser.error("--data is needed to search")
    torch.set_num_threads(args.threads)
    until = time.monotonic() + args.hours * 3600
    if args.shipped:
        items = tone_items(read_captions(), SHIPPED)
    else:
        items = pilot_items() if args.pilot else all_items(args.data, read_captions())
    for work in plan(items[: args.first]):
        if work.key in journal or work.arm not in args.arms:
            continue
        if work.arm != "everything" and work.budget not in args.budgets:
            continue
        if time.monotonic() > until:
            break
        row = run(work, args.data, args.run)
        journal.append(work.key, row)
        print(work.key, row["loss"], row["seconds"][-1], file=sys.stderr, flush=True)


def read_captions() -> list[str]:
    """Return the captions that come with the package."""
    from benchmarks.fidelity.contexts import captions

    return [caption for caption, _ in captions()]


def plan(items: Sequence[Item]) -> Iterator[Work]:
    """Yield all work, all arms of a problem together, so that differences are paired early."""
    for count, sweep in SWEEPS:
        for start in range(0, min(count, len(items)), _BLOCK):
            for budget, arms in sweep:
                for item in items[start : start + _BLOCK]:
                    for arm in arms:
                        yield Work(arm, budget, item)
    for item in items[:NUM_EVERYTHING]:
        yield Work("everything", EVERYTHING, item)


def run(work: Work, data: Path, folder: Path) -> dict[str, Any]:
    """Search one problem with one arm and return its row."""
    if work.arm == "everything":
        arm, beams = ARMS[LM](EVERYTHING), 1
    else:
        arm, beams = ARMS[work.arm](work.budget), BEAMS
    kind = work.item.kind
    bound = objective(kind).bind([problem(work.item, data)])
    per_token = charged(bound, folder / "rates.json")
    facts = {"arm": work.arm, "budget": work.budget, "problem": work.item.name, "kind": kind}
    return facts | search(
        bound, arm, beams=beams, seconds_per_token=per_token, scores=folder / "scores"
    )


def charged(bound: BoundObjective, file: Path) -> float:
    """Set the seconds charged for a token of the writer, and return those of the secondary."""
    primary: Any = bound.objective.primary
    primary.seconds_per_token = rate(file, primary.name, primary.model.next_log_probs, rows=BEAMS)
    model = bound.terms[0].term.model

    def forward(ids: Tensor) -> Tensor:
        return model.outputs(PaddedIds(ids, torch.full((len(ids),), ids.shape[1])))

    return rate(file, f"{model.name}, {_ROWS} texts", forward, rows=_ROWS)


def search(
    bound: BoundObjective,
    arm: AutoDAN,
    *,
    beams: int = BEAMS,
    steps: int = STEPS,
    seconds_per_token: float = 0.0,
    scores: Path | None = None,
) -> dict[str, Any]:
    """Search one problem and say, after each step, how good the best text is and what it cost.

    Args:
        bound: Objective with the targets of one problem.
        arm: Who proposes, and how much is scored.
        beams: Open texts.
        steps: Tokens appended.
        seconds_per_token: Seconds charged for a token of a text that is scored.
        scores: Folder of exact scores; None keeps none.

    Returns:
        Lists by step: text, loss without the end, fluency, term, cost and seconds so far; and the
        text that the search returns with its exact losses.
    """
    meter = Meter(seconds_per_token)
    method = replace(arm, steps=steps, beam_width=beams, ending_nats=_NEVER)
    state = method.init(metered(bound, meter, scores))
    start_cost, meter.cost, started = meter.cost, 0.0, meter.seconds
    row: dict[str, list[Any]] = {
        name: [] for name in ("texts", "open", "fluency", "term", "cost", "seconds")
    }
    while not method.is_done(state):
        state = method.step(state)
        if state.num_steps == len(row["texts"]) or not len(state.active):
            continue
        for name, value in _best(bound, state).items():
            row[name].append(value)
        row["cost"].append(meter.cost)
        row["seconds"].append(round(meter.seconds - started, 4))
    found = method.finish(state)[0]
    exact_all = bound.evaluate(found.texts, [0] * len(found.texts))
    tokenizer = bound.objective.primary.tokenizer
    best, *_ = found.order(exact_all, tokenizer)
    exact, text = exact_all[best], found.texts[best]
    return row | {
        "text": text,
        "loss": round(exact.loss, 6),
        "terms": {name: round(value, 6) for name, value in exact.terms.items()},
        "finished": text in found.finished,
        "scored": meter.scored,
        "start_cost": start_cost,
    }


def _best(bound: BoundObjective, state: AutoDANState) -> dict[str, Any]:
    """Return text, loss without the end, and its parts, of the best open text."""
    active = state.active
    best = int(active.losses.argmin())
    fluency = float(active.nll_sum[best] / active.num_chosen[best])
    loss = float(active.losses[best])
    term = (loss - bound.objective.fluency.weight * fluency) / bound.terms[0].weight
    values = {"open": loss, "fluency": fluency, "term": term}
    return {"texts": active.texts[best], **{k: round(v, 6) for k, v in values.items()}}


if __name__ == "__main__":
    main()
