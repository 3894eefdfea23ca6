"""`python -m benchmarks.speed fit|search`: our cost beside that of the published procedure.

Read next: `benchmarks.speed.fit` and `benchmarks.speed.search`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.speed.fit import bench_fit
from benchmarks.speed.search import SearchBench, bench_search
from benchmarks.speed.texts import TextBench
from fuseprompt.errors import FuseError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the two benchmarks.

    Args:
        argv: Arguments; those of the process by default.

    Returns:
        The exit code.
    """
    args = _parser().parse_args(argv)
    show_progress = not (args.quiet or args.json)
    try:
        if args.bench == "fit":
            if show_progress:
                print("Fitting twice; this takes one to two minutes ...", file=sys.stderr)
            fit = bench_fit(words_per_case=args.words_per_case, num_words=args.words)
            if args.json:
                print(json.dumps(asdict(fit)))
                return 0
            print(f"published  {fit.published_s:8.1f} s {fit.published_peak_mb:8.0f} MiB")
            print(f"ours       {fit.ours_s:8.1f} s {fit.ours_peak_mb:8.0f} MiB")
            print(f"ratio      {fit.ratio:8.1f}   at most {fit.words_per_case} words per map")
            return 0
        if show_progress:
            print("Searching; each shape takes two to four minutes ...", file=sys.stderr)
        for row in bench_search([name.strip() for name in args.shapes.split(",")]):
            print(json.dumps(asdict(row)) if args.json else _describe(row), flush=True)
    except FuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    benches = parser.add_subparsers(required=True, dest="bench")
    fit = benches.add_parser("fit", help="seconds and memory of a fit at the paper's shapes")
    fit.add_argument("--words-per-case", type=int, default=16_384, help="most words for one map")
    fit.add_argument("--words", type=int, default=None, help="for a quick look, only so many words")
    search = benches.add_parser("search", help="candidates a second at the paper's shapes")
    search.add_argument(
        "--shapes",
        default="paper2",
        help="paper2 (GPT-2-medium and CLIP, random weights), paper3 (with RoBERTa), offline (the "
        "real models), edit and continuation (texts, the real models); several with commas",
    )
    for bench in (fit, search):
        bench.add_argument("--prepare", action="store_true", help="no longer needed")
        bench.add_argument("--quiet", action="store_true", help="print results and errors only")
        bench.add_argument("--json", action="store_true", help="print JSON lines on stdout")
    return parser


def _describe(row: SearchBench | TextBench) -> str:
    """Return a result as a person reads it."""
    lines = [f"{row.shapes}"]
    if isinstance(row, SearchBench):
        lines.append(f"  published          {row.published_candidates_per_s:8.1f} a second")
        lines.append(f"  ratio              {row.ratio:8.1f}")
    lines += [
        f"  ours               {row.ours_candidates_per_s:8.1f} candidates a second",
        f"  of the ceiling     {row.ceiling_ratio:8.2f}",
        f"  in forward passes  {row.forward_share:8.2f} of the time",
        f"  token efficiency   {row.token_efficiency:8.2f}",
        f"  peak memory        {row.peak_mb:8.0f} MiB",
    ]
    for point in row.scaling if isinstance(row, SearchBench) else ():
        lines.append(
            f"  {point.problems:2d} at once         {point.seconds_per_caption:8.2f} s a caption"
            f" {point.peak_mb:8.0f} MiB"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
