"""`fuseprompt score`: captions of any captioner against those of people."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from fuseprompt.cli.options import Output
from fuseprompt.errors import UsageError
from fuseprompt.evaluation.metrics.base import METRICS, Scores, Scoring
from fuseprompt.tasks.kinds import Folder, Name


@dataclass(frozen=True)
class Options:
    """Score captions against those of people: BLEU, METEOR, ROUGE-L, CIDEr-D, SPICE.

    Attributes:
        predictions: JSON, JSON lines, or folder of a run; several are the parts of one set.
        dataset: Dataset: coco, karpathy, nocaps, senticap, flickr30k, flickrstyle10k or folder.
        root: Folder of the dataset.
        split: Split; the dataset's first by default.
        sentiment: Sentiment of captions and references, or both.
        field: Field that has the caption.
    """

    predictions: tuple[Path, ...] = field(metadata={"argument": "PREDICTIONS"})
    dataset: Name
    root: Folder
    scoring: Scoring
    output: Output
    split: Name | None = None
    sentiment: Name | None = None
    # Last: it hides the function of the same name.
    field: Name | None = None


def run(options: Options) -> int:
    """Score captions; return 0, or 1 if no metric has a value."""
    from fuseprompt.evaluation.datasets import read_dataset
    from fuseprompt.evaluation.metrics.predictions import optimised_models, read_predictions
    from fuseprompt.evaluation.metrics.score import score_parts
    from fuseprompt.models.hub import silence_libraries

    silence_libraries()
    files, output = options.predictions, options.output
    if missing := [str(file) for file in files if not file.exists()]:
        raise UsageError(f"{missing[0]}: no such file. Expected a file of captions or a run.")
    known = (*optimised_models(files), *(options.scoring.optimised or ()))
    scoring = replace(options.scoring, optimised=known or None)
    predictions = read_predictions(files, field=options.field)
    dataset = read_dataset(
        options.dataset, options.root, split=options.split, sentiment=options.sentiment
    )
    is_watched = sys.stderr.isatty() and not output.quiet
    log = (
        partial(print, end=" ...\n", file=sys.stderr, flush=True) if is_watched else lambda _: None
    )
    scores = score_parts(predictions, dataset, scoring, on_metric=log)
    if output.json:
        for part, one in scores.items():
            of_part = {"part": part} if part else {}
            print(json.dumps({"dataset": options.dataset, **of_part, **one.as_json()}))
    else:
        print(f"{options.dataset}, split {dataset.split}")
        print_scores(scores)
    for note in dataset.notes:
        output.note(note)
    for part, one in scores.items():
        for note in one.notes:
            output.note(f"{part}: {note}" if part else note)
    values = (score.value for one in scores.values() for score in one.values.values())
    return int(all(value is None for value in values))


def print_scores(scores: Mapping[str, Scores]) -> None:
    """Print scores by part as tables, those of the published metrics times 100."""
    reasons: set[str] = set()
    for part, one in scores.items():
        if part:
            print(f" {'part':10}  {part}")
        print(f" {'images':10}  {one.images:,}, {100 * one.coverage:.1f} % with a caption")
        for name, score in one.values.items():
            if score.value is None:
                text = f"unavailable: {'see above' if score.note in reasons else score.note}"
                reasons.add(score.note)
            elif score.by:
                text = f"{score.value:.4f}  {score.origin}"
            else:
                text = f"{100 * score.value:.2f}" if name in METRICS else f"{score.value:.4f}"
            print(f" {name:10}  {text}")
