"""Where the time of a search goes: processor seconds by stage, for photos searched together.

The offline models caption the example photos on one thread under Python's profiler, which counts
processor time and so does not mind a busy machine; its own cost falls on Python code, so the shares
of models are a little too low.

    python -m benchmarks.speed.step_profile --problems 1 --steps 12
    python -m benchmarks.speed.step_profile --problems 16 --steps 2

Results: benchmarks/results/profile.md.
"""

import argparse
import cProfile
import pstats
import resource
import time
from pathlib import Path

import torch
from PIL import Image, ImageOps

from fuseprompt.objective.problem import Problem
from fuseprompt.search.minimize import minimize
from fuseprompt.tasks.caption import method_of, objective_of
from fuseprompt.tasks.models import load_models
from fuseprompt.tasks.settings import OFFLINE, CaptionSettings

PHOTOS = Path(__file__).resolve().parents[2] / "examples" / "photos"

#: Stage, function, and the function that calls it ("" for any).
STAGES = (
    ("targets: reading the pictures", "bind", "_search_group"),
    ("tokenizer's classes, tables of proposals", "init", "_search_group"),
    ("language model: the next token", "next_log_probs", "step"),
    ("sentence ends, scored", "finish_sentences", "_finish"),
    ("predictions for all tokens", "scores", "propose"),
    ("choosing candidates, round trip", "choose", "propose"),
    ("secondary ids of candidates", "extend", "score"),
    ("secondary: exact losses", "exact_losses", "step"),
    ("selection, full round trip", "keep_best", "step"),
    ("reported losses", "evaluate", "_search_group"),
)


def pictures(count: int) -> list[Image.Image]:
    """Return the example photos, then their mirror images, then turned ones."""
    photos = [Image.open(file).convert("RGB") for file in sorted(PHOTOS.glob("*.jpg"))]
    mirrored = [ImageOps.mirror(photo) for photo in photos]
    turned = [photo.rotate(90, expand=True) for photo in photos]
    return [*photos, *mirrored, *turned][:count]


def seconds_by_stage(profile: cProfile.Profile) -> dict[str, float]:
    """Return the cumulative seconds of each stage, those of what it contains left out."""
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    seconds: dict[str, float] = {}
    for stage, name, caller in STAGES:
        spent = 0.0
        for (file, _, function), (*_, total, callers) in stats.items():
            if function != name or "fuseprompt" not in file:
                continue
            calls = [times[3] for (_, _, by), times in callers.items() if by == caller]
            spent += sum(calls) if caller else total
        seconds[stage] = spent
    seconds["secondary: exact losses"] -= seconds["secondary ids of candidates"]
    return seconds


def main() -> None:
    """Search, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=1, help="photos together (default: 1)")
    parser.add_argument("--steps", type=int, default=12, help="steps (default: 12)")
    parser.add_argument("--plain", action="store_true", help="time the whole without profiler")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = CaptionSettings(max_tokens=args.steps)
    objective = objective_of(settings, load_models(OFFLINE, with_sentiment=False))
    problems = [
        Problem(str(i), {"image": image}, settings.prefix)
        for i, image in enumerate(pictures(args.problems))
    ]
    # What is made once for a process is made before.
    minimize(objective, method_of(CaptionSettings(max_tokens=1)), problems[:1])
    profile = cProfile.Profile(time.process_time)
    started = time.process_time()
    if not args.plain:
        profile.enable()
    minimize(objective, method_of(settings), problems, group_size=len(problems))
    if not args.plain:
        profile.disable()
    total = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if not args.plain:
        seconds = seconds_by_stage(profile)
        seconds["all else"] = total - sum(seconds.values())
        for stage, spent in seconds.items():
            print(f"| {stage} | {spent:.2f} | {100 * spent / total:.1f} % |")
    print(f"| all | {total:.2f} | {total / len(problems):.2f} a picture, peak {peak:.0f} MB |")


if __name__ == "__main__":
    main()
