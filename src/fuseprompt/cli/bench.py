"""`fuseprompt bench fit`: what fitting the adapter costs, beside the published procedure.

A thin layer over `fuseprompt.evaluation.bench`, which is to be read next.
"""

import sys


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
