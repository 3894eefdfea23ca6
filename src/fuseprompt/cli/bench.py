"""`fuseprompt bench fit` and `bench search`: our cost beside that of the published procedure.

A thin layer over `fuseprompt.evaluation.bench` and `fuseprompt.evaluation.bench_search`, which are
to be read next.
"""

import json as json_module
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuseprompt.evaluation.bench_search import SearchBench


def bench_fit(
    *,
    words_per_case: int = 16_384,
    prepare: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Fit the adapter at the paper's shapes with our code and with the published procedure.

    Takes one to two minutes on two free cores and up to 8 GB of memory.

    Args:
        words_per_case: Most words for one map, on both sides.
        prepare: First download the vocabularies of GPT-2 and CLIP (2 MB) if they are missing.
        quiet: Print nothing but the result and errors.
        json: Print the result as one JSON line.

    Returns:
        Exit code 0.
    """
    from fuseprompt.evaluation import bench
    from fuseprompt.evaluation.bench_vocabularies import prepare_vocabularies

    if prepare:
        prepare_vocabularies()
    if not (quiet or json):
        print("Fitting twice; this takes one to two minutes ...", file=sys.stderr)
    result = bench.bench_fit(words_per_case=words_per_case)
    if json:
        print(bench.as_json(result))
    else:
        print(f"published  {result.published_s:8.1f} s {result.published_peak_mb:8.0f} MiB")
        print(f"ours       {result.ours_s:8.1f} s {result.ours_peak_mb:8.0f} MiB")
        print(f"ratio      {result.ratio:8.1f}   at most {result.words_per_case} words per map")
    return 0


def bench_search(
    *,
    shapes: str = "paper2",
    prepare: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Search at the paper's shapes with our code and with the published procedure.

    Takes two to four minutes a shape on two free cores, and up to 5 GB of memory.

    Args:
        shapes: Names of shapes, with commas.
        prepare: First download the vocabularies of GPT-2 and CLIP (2 MB) if they are missing.
        quiet: Print nothing but results and errors.
        json: Print one JSON line for each shape.

    Returns:
        Exit code 0.
    """
    from fuseprompt.evaluation import bench_search as bench
    from fuseprompt.evaluation.bench_vocabularies import prepare_vocabularies

    if prepare:
        prepare_vocabularies()
    if not (quiet or json):
        print("Searching; each shape takes two to four minutes ...", file=sys.stderr)
    for row in bench.bench_search([name.strip() for name in shapes.split(",")]):
        print(json_module.dumps(asdict(row)) if json else _describe(row), flush=True)
    return 0


def _describe(row: "SearchBench") -> str:
    """Return a result as a person reads it."""
    lines = [
        f"{row.shapes}",
        f"  published          {row.published_candidates_per_s:8.1f} candidates a second",
        f"  ours               {row.ours_candidates_per_s:8.1f}",
        f"  ratio              {row.ratio:8.1f}",
        f"  of the ceiling     {row.ceiling_ratio:8.2f}",
        f"  in forward passes  {row.forward_share:8.2f} of the time",
        f"  token efficiency   {row.token_efficiency:8.2f}",
        f"  peak memory        {row.peak_mb:8.0f} MiB",
    ]
    for point in row.scaling:
        lines.append(
            f"  {point.problems:2d} at once         {point.seconds_per_caption:8.2f} s a caption"
            f" {point.peak_mb:8.0f} MiB"
        )
    return "\n".join(lines)
