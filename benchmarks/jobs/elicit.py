"""Texts after which a language model goes on as wanted: ours against nanoGCG and TROPT.

    python -m benchmarks.jobs.elicit run JOURNAL --rivals VENV/bin/python [--seconds 60] [--only N]
    python -m benchmarks.jobs.elicit two JOURNAL --second FOLDER [--only N]
    python -m benchmarks.jobs.elicit table JOURNAL > benchmarks/results/elicit.md

Every method gets the same targets, model, length and CPU seconds, one thread, a target at a time,
so that a run that is stopped has whole targets and goes on where it was. The rivals are run by
`elicit_rivals.py` in an environment of their own, made with

    python -m venv VENV && echo MAIN/site-packages > VENV/lib/python3.11/site-packages/main.pth
    VENV/bin/pip install --no-deps nanogcg==0.3.0 tropt==0.1.1 and what tropt imports
"""

import argparse
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.bootstrap import interval
from benchmarks.journal import Journal

#: Nothing in them was used to choose a default.
TARGETS = (
    " London",
    " a baseball bat",
    " Einstein",
    " seven",
    " the kitchen",
    " happy birthday",
    " tea",
    " riding a horse",
    " Shakespeare",
    " winter",
    " the beach",
    " doctor",
    " a birthday cake",
    " Japan",
    " good morning",
    " talking on the phone",
    " silver",
    " on top of a table",
    " an orange cat",
    " a red fire truck",
)

#: What is wrong with the results of one search, read one by one.
WRONG = {
    " happy birthday": "a scene that leads nowhere: no one speaks",
    " winter": "many other words fit as well",
    " seven": "makes no sense, and any number would do",
    " a baseball bat": "names the bat before, and what ends up as what is odd",
    " riding a horse": "has a wrong fact, and any activity would do",
    " the kitchen": "nothing but that one goes there after a meal, not before",
    " tea": "nothing",
    " Einstein": "says the first name: certain, but hardly a finding",
    " London": "nothing",
    " Shakespeare": "says the first name: certain, but hardly a finding",
    " good morning": "many other words fit as well, and it is no greeting here",
    " an orange cat": "says its noun twice, and any colour would do",
    " silver": "a made-up coin; and gold or bronze would do",
    " talking on the phone": "many other ways would do",
    " on top of a table": "nothing",
    " a birthday cake": "nothing",
    " doctor": "an injury is no procedure",
    " Japan": "nothing, but a text that is no whole sentence",
    " the beach": "nothing",
    " a red fire truck": "one works there least of the time, and many other places would do",
}
RIVALS = ("nanogcg", "tropt-gcg", "tropt-beast")
TOKENS = 12


def run(journal: Journal, python: str, seconds: float, only: int) -> None:
    """Run all methods on each target in turn."""
    from fuseprompt.models.hub import load

    torch.set_num_threads(1)
    lm = load("offline:lm")
    rivals = Path(__file__).with_name("elicit_rivals.py")
    for target in TARGETS[:only]:
        if f"ours/{target}" not in journal:
            texts, used, runs = search(lm, target, seconds)
            rows = [measure(lm, text, target) for text in texts]
            row = {"target": target, "first": rows[0], "texts": rows, "seconds": used}
            journal.append(f"ours/{target}", {**row, "runs": runs})
        for method in RIVALS:
            if f"{method}/{target}" in journal:
                continue
            numbers = [str(lm.source), str(TOKENS), str(seconds)]
            done = subprocess.run(
                [python, str(rivals), method, *numbers, target],
                capture_output=True,
                text=True,
                check=False,
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith('{"row"')]
            if not lines:
                raise SystemExit(f"{method}: {done.stderr[-2000:]}")
            found = json.loads(lines[0])["row"]
            journal.append(f"{method}/{target}", found | measure(lm, found["text"], target))


def run_two(journal: Journal, folder: str, only: int) -> None:
    """Search one text for `offline:lm` and another model together, and for each of them alone.

    `offline:lm` writes all of them, so that they differ in nothing but what is asked.
    """
    from fuseprompt.models.hub import load
    from fuseprompt.objective.continuation import Continuation
    from fuseprompt.objective.objective import Objective
    from fuseprompt.tasks.elicit import elicit, objective_for
    from fuseprompt.tasks.settings import ElicitSettings

    torch.set_num_threads(1)
    models = {"first": load("offline:lm"), "second": load(folder)}
    settings = ElicitSettings(max_tokens=TOKENS)
    both = objective_for([*models.values()], settings)
    objectives = {"both": both}
    for name, model in models.items():
        one = Continuation(model, settings.weight, name=model.name)
        objectives[name] = Objective([both.fluency, one], constraints=both.constraints)
    for target in TARGETS[:only]:
        for name, objective in objectives.items():
            if f"two {name}/{target}" in journal:
                continue
            started = time.process_time()
            text = next(elicit([target], settings, objective=objective)).result.text
            seconds = time.process_time() - started
            measured = {key: measure(model, text, target) for key, model in models.items()}
            row = {key: one["nll"] for key, one in measured.items()}
            row |= {"fluency": measured["first"]["fluency"], "target": target, "text": text}
            journal.append(f"two {name}/{target}", row | {"seconds": seconds})


def search(lm: Any, target: str, seconds: float) -> tuple[list[str], float, int]:
    """Return the texts of the default search, done again with other seeds while there is time.

    The first is that of the first search; a last one that is not done in time does not count.
    """
    from dataclasses import replace

    from fuseprompt.tasks.elicit import elicit, objective_for
    from fuseprompt.tasks.settings import ElicitSettings

    settings = ElicitSettings(max_tokens=TOKENS)
    objective = objective_for([lm], settings)
    started, texts, seed = time.process_time(), list[str](), 0
    used = 0.0
    while True:
        one = next(elicit([target], replace(settings, seed=seed), objective=objective))
        now = time.process_time() - started
        if seed and now > seconds:
            return list(dict.fromkeys(texts)), used, seed
        used, seed = now, seed + 1
        texts += [one.result.text, *(other.text for other in one.result.alternatives)]


def measure(lm: Any, text: str, target: str) -> dict[str, Any]:
    """Return what the model makes of a text: nats a token of the target, and of the text."""
    from fuseprompt.objective.continuation import Continuation
    from fuseprompt.objective.problem import Problem
    from fuseprompt.objective.terms import Fluency
    from fuseprompt.tasks.elicit import telling

    term = Continuation(lm)
    bound = term.bind(term.encode_target(target)[None])
    nll = float(bound.score([text], torch.zeros(1, dtype=torch.long)))
    nats = Fluency(lm).token_nll([text], [Problem("0")])[0][:-1]
    told = telling((target,)).missing(text, Problem("0"))
    return {"text": text, "nll": nll, "fluency": float(nats.mean()), "says_it": bool(told)}


def table(journal: Journal) -> str:
    """Return the result page."""
    rows = journal.rows
    methods = ("ours", *RIVALS)
    whole = [t for t in TARGETS if all(f"{m}/{t}" in rows for m in methods)]
    lines = [
        "# Texts after which a model goes on as wanted",
        "",
        "Made by `python -m benchmarks.jobs.elicit table` from `elicit.jsonl.gz`, which",
        "`python -m benchmarks.jobs.elicit run` wrote: one thread on a busy machine (CPU seconds",
        f"count). {len(whole)} of {len(TARGETS)} targets were run: a text of at most {TOKENS}",
        "tokens each, on `offline:lm`. Means with 95 % bootstrap intervals over the targets. At",
        "the last nine the machine was so busy that the same seconds were half as many steps of",
        "the rivals, and one search of ours in place of five.",
        "",
        "The rivals minimise the nll of the target alone, as their recipes do: that their texts",
        "are not fluent says what they are for. TROPT's GCG with a perplexity loss was not run.",
        "nanoGCG 0.3.0 and TROPT 0.1.1's GCG: 64 candidates a step (with 512 the seconds would",
        "do for two or three steps), of the best 256 tokens at a place, from `x x x ...`;",
        "TROPT's BEAST: 8 x 8 (15 x 15 would take some 90 s), again with new draws while there",
        "is time. These sizes were set after one trial of ten seconds and not tuned; ours were,",
        "on targets of its own, and are the command's defaults. Repeated: other seeds in the",
        "same seconds. No text of ours may have the target's own words; theirs may.",
        "",
        "| method | target, nats a token | text, nats a token | says the target | CPU s |",
        "|---|---|---|---|---|",
    ]
    first = {t: rows[f"ours/{t}"]["first"] for t in whole}
    best = {t: min(rows[f"ours/{t}"]["texts"], key=_loss) for t in whole}
    seconds = {t: rows[f"ours/{t}"]["seconds"] / rows[f"ours/{t}"]["runs"] for t in whole}
    lines.append(_line("ours, one search", [first[t] for t in whole], list(seconds.values())))
    used = [rows[f"ours/{t}"]["seconds"] for t in whole]
    lines.append(_line("ours, repeated", [best[t] for t in whole], used))
    for method in RIVALS:
        found = [rows[f"{method}/{t}"] for t in whole]
        lines.append(_line(method, found, [one["seconds"] for one in found]))
    lines += [
        "",
        "Against each rival: how many nats a token our texts are more fluent where the target",
        "is as likely, and how many nats a token likelier the target is after a text as fluent,",
        "both on the front of our texts of the repeated search (between two of them on a line).",
        "Only targets count for which our front has a text at least that good in what is held",
        "equal, which leaves out those where a rival makes the target likelier than any text of",
        "ours.",
        "",
        "| rival | more fluent at equal nll | targets | likelier at equal fluency | targets |",
        "|---|---|---|---|---|",
    ]
    for method in RIVALS:
        pairs = [(rows[f"ours/{t}"]["texts"], rows[f"{method}/{t}"]) for t in whole]
        cells = []
        for by, of in (("nll", "fluency"), ("fluency", "nll")):
            reached = [(o, r) for o, r in pairs if min(one[by] for one in o) <= r[by]]
            gains = [r[of] - at(ours, r[by], by, of) for ours, r in reached]
            cells += [_mean(gains) if gains else "-", f"{len(reached)} of {len(pairs)}"]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    lines += ["", "Ours, one search, the worst first:", ""]
    for t in sorted(whole, key=lambda t: -_loss(first[t])):
        wrong = f" - {WRONG[t]}" if t in WRONG else ""
        lines.append(f"* {_shown(first[t])} **{t.strip()}**{wrong}")
    lines += _two(rows)
    for method in RIVALS:
        lines += ["", f"{method}:", ""]
        lines += [f"* {_shown(rows[f'{method}/{t}'])} **{t.strip()}**" for t in whole]
    return "\n".join(lines)


def _two(rows: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the part on two models, if it was run."""
    names = {"first": "`offline:lm` alone", "second": "Gemma alone", "both": "both"}
    whole = [t for t in TARGETS if all(f"two {name}/{t}" in rows for name in names)]
    if not whole:
        return []
    found = {name: [rows[f"two {name}/{t}"] for t in whole] for name in names}
    worse = {n: [max(one["first"], one["second"]) for one in own] for n, own in found.items()}
    lines = [
        "",
        "## One text for two models",
        "",
        f"`offline:lm` (49,152 tokens) and Gemma 3 270M (262,144), {len(whole)} targets, one",
        "search each; `offline:lm` writes every text. *Worse*: the nats a token of the model that",
        "finds the target less likely; behind it, by how much the joint text's is lower. It gains",
        "over the text for `offline:lm` alone, and nothing over the one for Gemma alone: a text",
        "that makes the larger model sure mostly does for the smaller one, too.",
        "",
        "| text found for | worse of the two | joint text lower by | fluency | CPU s |",
        "|---|---|---|---|---|",
    ]
    for name, shown in names.items():
        gains = [a - b for a, b in zip(worse[name], worse["both"], strict=True)]
        fluency, seconds = ([one[key] for one in found[name]] for key in ("fluency", "seconds"))
        less = "" if name == "both" else _mean(gains)
        spent = sum(seconds) / len(seconds)
        lines.append(
            f"| {shown} | {_mean(worse[name])} | {less} | {_mean(fluency)} | {spent:.0f} |"
        )
    lines += ["", "The joint texts, with the nats of both models, the worst first:", ""]
    for one in sorted(found["both"], key=lambda one: -max(one["first"], one["second"])):
        both = f"{one['first']:.2f}, {one['second']:.2f}"
        lines.append(f"* {both}: {' '.join(one['text'].split())} **{one['target'].strip()}**")
    return lines


def _loss(row: dict[str, Any]) -> float:
    return row["fluency"] + 3.0 * row["nll"]


def _line(name: str, found: Sequence[dict[str, Any]], seconds: Sequence[float]) -> str:
    says = sum(one["says_it"] for one in found)
    cells = [_mean([one[key] for one in found]) for key in ("nll", "fluency")]
    spent = sum(seconds) / len(seconds)
    return f"| {name} | {cells[0]} | {cells[1]} | {says} of {len(found)} | {spent:.0f} |"


def _mean(values: Sequence[float]) -> str:
    low, high = interval(values)
    return f"{sum(values) / len(values):.2f} [{low:.2f}, {high:.2f}]"


def at(texts: Sequence[dict[str, Any]], value: float, by: str, of: str) -> float:
    """Return the least `of` at a value of `by` that is reached, on the texts' convex hull."""
    hull: list[tuple[float, float]] = []
    for x, y in sorted((one[by], one[of]) for one in texts):
        while len(hull) > 1 and _turns(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    least = min(range(len(hull)), key=lambda i: hull[i][1])
    hull = hull[: least + 1]  # Beyond it a text with more of `by` has no less of `of`.
    if value >= hull[-1][0]:
        return hull[-1][1]
    after = next(i for i, (x, _) in enumerate(hull) if x > value)
    (x0, y0), (x1, y1) = hull[after - 1], hull[after]
    return y0 + (y1 - y0) * (value - x0) / (x1 - x0)


def _turns(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) <= (b[1] - a[1]) * (c[0] - a[0])


def _shown(row: dict[str, Any]) -> str:
    text = " ".join(row["text"].split()).replace("*", "\\*").replace("<", "&lt;")
    return f"{row['nll']:.2f}, {row['fluency']:.2f}: {text}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "two", "table"))
    parser.add_argument("journal", type=Path)
    parser.add_argument("--rivals", default="python", help="Python of the rivals' environment")
    parser.add_argument("--second", help="folder of the second language model")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds a target")
    parser.add_argument("--only", type=int, default=len(TARGETS), help="first targets alone")
    given = parser.parse_args(argv)
    journal = Journal(given.journal)
    if given.what == "table":
        print(table(journal))
    elif given.what == "two":
        run_two(journal, given.second, given.only)
    else:
        run(journal, given.rivals, given.seconds, given.only)


if __name__ == "__main__":
    main()
