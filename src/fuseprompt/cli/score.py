"""`fuseprompt score`: captions of any captioner against those of people.

A thin layer over `fuseprompt.evaluation.metrics.score`, which is to be read next.
"""

import json as json_format
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseprompt.cli.parser_base import UsageError

if TYPE_CHECKING:
    from fuseprompt.evaluation.metrics.base import Score, Scores


def run(args: Any) -> int:
    """Score captions.

    Args:
        args: Parsed options (`fuseprompt.cli.parser_score`).

    Returns:
        Exit code: 0, or 1 if no metric has a value.

    Raises:
        UsageError: If a file is missing.
    """
    from fuseprompt.cli.bar import silence_libraries
    from fuseprompt.evaluation.datasets import read_dataset
    from fuseprompt.evaluation.metrics.base import Scoring
    from fuseprompt.evaluation.metrics.predictions import optimised_models, read_predictions
    from fuseprompt.evaluation.metrics.score import score_parts

    silence_libraries()
    files = [Path(name) for name in args.predictions]
    if missing := [str(file) for file in files if not file.exists()]:
        raise UsageError(f"{missing[0]}: no such file. Expected a file of captions or a run.")
    optimised = (*optimised_models(files), *(args.optimised or ()))
    scoring = Scoring(
        subset=args.subset,
        by_domain=args.by_domain,
        spice_folder=None if args.spice_folder is None else Path(args.spice_folder),
        distinct=args.distinct,
        clip_score=args.clip_score,
        fluency=args.fluency,
        judges=tuple(args.judge or ()),
        optimised=optimised or None,
    )
    predictions = read_predictions(files, field=args.field)
    dataset = read_dataset(
        args.dataset, Path(args.root), split=args.split, sentiment=args.sentiment
    )
    is_watched = sys.stderr.isatty() and not args.quiet
    scores = score_parts(predictions, dataset, scoring, on_metric=_tell if is_watched else None)
    if args.json:
        for part, one in scores.items():
            of_part = {"part": part} if part else {}
            print(json_format.dumps({"dataset": args.dataset, **of_part, **one.as_json()}))
    else:
        print(f"{args.dataset}, split {dataset.split}")
        print_scores(scores)
    if not args.quiet:
        for note in dataset.notes:
            print(f"note: {note}", file=sys.stderr)
        for part, one in scores.items():
            for note in one.notes:
                print(f"note: {part + ': ' if part else ''}{note}", file=sys.stderr)
    return 0 if any(_has_value(one) for one in scores.values()) else 1


def print_scores(scores: "Mapping[str, Scores]") -> None:
    """Print scores as tables, those of the published metrics times 100.

    Args:
        scores: Scores by part of the dataset, "" for the whole.
    """
    from rich.console import Console
    from rich.table import Table

    from fuseprompt.evaluation.metrics.base import METRICS

    console = Console(highlight=False, markup=False)
    told: set[str] = set()
    for part, one in scores.items():
        table = Table(show_header=False, box=None)
        if part:
            table.add_row("part", part)
        table.add_row("images", f"{one.images:,}, {100 * one.coverage:.1f} % with a caption")
        for name, score in one.values.items():
            if score.value is None:
                reason = "see above" if score.note in told else score.note
                told.add(score.note)
                table.add_row(name, f"unavailable: {reason}")
            elif score.by:
                table.add_row(name, f"{score.value:.4f}  {_describe(score)}")
            else:
                in_percent = f"{100 * score.value:.2f}"
                table.add_row(name, in_percent if name in METRICS else f"{score.value:.4f}")
        console.print(table)


def _describe(score: "Score") -> str:
    """Return the model behind a score, and whether the captions were optimised for it."""
    said = {
        True: "not optimised for",
        False: "the captions were optimised for it",
        None: "--optimised did not say whether the captions were optimised for it",
    }
    details = "".join(f"; {name} {number:.4f}" for name, number in score.details.items())
    return f"by {score.by} ({said[score.independent]}{details})"


def _has_value(scores: "Scores") -> bool:
    return any(score.value is not None for score in scores.values.values())


def _tell(name: str) -> None:
    print(f"{name} ...", file=sys.stderr, flush=True)
