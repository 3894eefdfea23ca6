"""Seconds per caption on a GPU at the paper's shapes, from a checkout alone.

Random weights of the real sizes and the vocabularies in `benchmarks/vocabularies`; nothing is
downloaded and no file outside the checkout is read or written. First the losses of the same texts
are compared with those of the CPU; then each row is printed, and appended to `--out`, as soon as it
is there. What does not fit into `--minutes` is left out and said so.

    python benchmarks/gpu.py --out gpu.jsonl

It needs Python 3.11 or 3.12, torch 2.11 and transformers 5.17 or newer. Read next:
`benchmarks/speed/shapes.py`.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

if TYPE_CHECKING:
    import torch

    from benchmarks.speed.shapes import Setup
    from benchmarks.speed.vocabularies import Vocabularies

#: Largest relative difference of a term between devices at which the rest is worth measuring.
USELESS = 1e-3
#: The tolerance of the project's exactness tests.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Sizes:
    """How much is searched.

    Attributes:
        small: Tiny models.
        steps: Tokens that are appended.
        search_width: Candidates per beam.
        beam_width: Beams.
        counts: Captions at once.
        forward_rows: Rows of a bare forward pass.
    """

    small: bool
    steps: int
    search_width: int
    beam_width: int
    counts: tuple[int, ...]
    forward_rows: int


#: The paper's settings (section 4.2), 16 tokens.
PAPER = Sizes(
    small=False, steps=16, search_width=512, beam_width=5, counts=(1, 64), forward_rows=2048,
)  # fmt: skip
SMALL = Sizes(
    small=True, steps=2, search_width=16, beam_width=2, counts=(1, 2), forward_rows=32,
)  # fmt: skip


def main() -> int:
    """Measure, and return the exit code: 1 if the two devices disagree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=None, help="append the rows to this file, too")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--small", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--minutes", type=float, default=8.0, help="begin nothing after so long")
    args = parser.parse_args()
    rows = Rows(args.out, time.monotonic() + 60.0 * args.minutes)
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".gpu-") as scratch:
        # What the package keeps between runs stays inside the checkout.
        os.environ["FUSEPROMPT_CACHE"] = scratch
        sizes = SMALL if args.small else PAPER
        return measure(rows, args.device, sizes)


class Rows:
    """Rows that are written at once, and the time that is left.

    Args:
        file: Where they are appended, or None.
        end: When to begin nothing more, by the monotonic clock.
    """

    def __init__(self, file: Path | None, end: float) -> None:
        self._file = file
        self._end = end

    @property
    def seconds_left(self) -> float:
        """Seconds until nothing more is begun."""
        return self._end - time.monotonic()

    def write(self, row: str, **values: Any) -> None:
        """Print and append a row."""
        line = json.dumps({"row": row, **values})
        print(line, flush=True)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def measure(rows: Rows, device_name: str, sizes: Sizes) -> int:
    """Write all rows; return the exit code."""
    import torch

    from benchmarks.speed.shapes import paper_setup
    from benchmarks.speed.vocabularies import load_vocabularies
    from fuseprompt.models.hub import pick_device
    from fuseprompt.search.minimize import versions

    device = pick_device(device_name)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    rows.write("machine", device=name, python=sys.version.split()[0], **versions())
    vocabularies = load_vocabularies()
    for shape, with_sentiment in (("paper2", False), ("paper3", True)):
        started = time.monotonic()
        setup = paper_setup(
            vocabularies, with_sentiment=with_sentiment, small=sizes.small, device=device
        )
        seconds = time.monotonic() - started
        rows.write("built", shapes=shape, seconds=round(seconds, 1))
        if with_sentiment:  # It has all three models.
            differs = compare_with_cpu(rows, setup, vocabularies, small=sizes.small)
            if differs > USELESS:
                return 1
            measure_forwards(rows, setup, sizes, device)
        for count in sizes.counts:
            measure_search(rows, shape, setup, sizes, count=count, device=device)
    return 0


def compare_with_cpu(
    rows: Rows, setup: "Setup", vocabularies: "Vocabularies", *, small: bool
) -> float:
    """Write and return the largest relative difference of a term from the CPU's, on 16 texts."""
    from benchmarks.speed.shapes import paper_setup

    other = paper_setup(vocabularies, with_sentiment=True, small=small)
    words = ("cat", "boat", "lighthouse", "philosopher", "red", "of", "under", "Tuesday")
    texts = [f"{setup.prefix} {word}{end}" for word in words for end in ("", ", near it.")]
    problems = setup.problems(1)
    ours, theirs = (
        s.objective.bind(problems).evaluate(texts, [0] * len(texts)) for s in (setup, other)
    )
    worst = {
        term: max(
            abs(a.terms[term] - b.terms[term]) / max(1.0, abs(b.terms[term]))
            for a, b in zip(ours, theirs, strict=True)
        )
        for term in ours[0].terms
    }
    largest = max(worst.values())
    rows.write("equality", worst=worst, texts=len(texts), within_tolerance=largest <= TOLERANCE)
    return largest


def measure_forwards(rows: Rows, setup: "Setup", sizes: Sizes, device: "torch.device") -> None:
    """Write how many rows per second bare forward passes read: what bounds any search."""
    import torch

    from fuseprompt.text.retokenize import PaddedIds

    objective = setup.objective
    for term in objective.terms:
        model = term.model
        for length in (3, 12, 18):
            ids = torch.randint(len(model.vocabulary), (sizes.forward_rows, length))
            ids[:, -1] = model.tokenizer.suffix_ids[-1]
            padded = PaddedIds(ids, torch.full((len(ids),), length))
            seconds = best_seconds(lambda p=padded, m=model: m.outputs(p), device)
            rate = round(len(ids) / seconds)
            rows.write("forward", term=term.name, tokens=length, rows_per_s=rate)
    ids = torch.randint(len(objective.primary.vocabulary), (sizes.forward_rows // 4, 16))
    seconds = best_seconds(lambda: objective.primary.next_log_probs(ids), device)
    rows.write("forward", term="fluency", tokens=16, rows_per_s=round(len(ids) / seconds))


def measure_search(
    rows: Rows,
    shape: str,
    setup: "Setup",
    sizes: Sizes,
    *,
    count: int,
    device: "torch.device",
) -> None:
    """Write seconds per caption for so many captions at once; what is made once was made before."""
    import torch

    from fuseprompt.methods.autodan import AutoDAN
    from fuseprompt.search.minimize import minimize

    facts = {"shapes": shape, "problems": count, "search_width": sizes.search_width}
    if rows.seconds_left <= 0:
        rows.write("left out", **facts)
        return

    def search(steps: int, first: int) -> int:
        method = AutoDAN(
            steps, setup.proposal, sizes.beam_width, sizes.search_width, max_end_nats=-1.0
        )
        results = minimize(
            setup.objective,
            method,
            setup.problems(count, first=first),
            group_size=count,
            time_limit=max(rows.seconds_left, 1.0),
        )
        done = min(len(r.history) for r in results)
        facts.update(steps=done, complete=done == steps)
        return sum(entry.evaluations for r in results for entry in r.history)

    started = time.monotonic()
    search(2, 1000)
    warm_up = time.monotonic() - started
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    started = time.monotonic()
    candidates = search(sizes.steps, 0)
    seconds = time.monotonic() - started
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
    rows.write(
        "search",
        **facts,
        beam_width=sizes.beam_width,
        warm_up_s=round(warm_up, 1),
        seconds_per_caption=round(seconds / count, 3),
        candidates_per_s=round(candidates / seconds, 1),
        peak_gpu_mb=None if peak is None else round(peak),
    )


def best_seconds(compute: Callable[[], object], device: "torch.device") -> float:
    """Return the seconds of the fastest of three calls, after one that warms up."""
    import torch

    times = []
    for _ in range(4):
        started = time.monotonic()
        compute()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.monotonic() - started)
    return min(times[1:])


if __name__ == "__main__":
    sys.exit(main())
