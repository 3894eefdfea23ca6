"""`fuseprompt evaluate`: caption a dataset, score it and write the report."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fuseprompt.cli.bar import Bar, describe_seconds
from fuseprompt.cli.caption import describe_models, preset
from fuseprompt.cli.options import Output
from fuseprompt.cli.score import print_scores
from fuseprompt.errors import MetricError
from fuseprompt.evaluation.runs.plan import RunOptions
from fuseprompt.tasks.kinds import File, Folder
from fuseprompt.tasks.settings import ModelSettings, SearchSettings, model_ids

if TYPE_CHECKING:
    from fuseprompt.evaluation.runs.evaluate import Status
    from fuseprompt.evaluation.runs.folder import Run

__all__ = ["Evaluation", "Options", "ScoringOptions", "preset", "print_run", "run"]

#: Seconds between two lines about progress where nobody is looking at a terminal.
LINE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class ScoringOptions:
    """How captions are scored.

    Attributes:
        spice_folder: Folder of Stanford CoreNLP 3.6.0, for SPICE.
        no_score: Write captions and report, compute no scores.
    """

    spice_folder: Folder | None = None
    no_score: bool = False


@dataclass(frozen=True)
class Evaluation:
    """Options of a run and of its scores.

    Attributes:
        check_grouping: Caption every image once more by itself, and count the captions that differ.
        config: YAML file with any of these options.
    """

    run: RunOptions
    settings: SearchSettings = field(metadata={"also": {"max_tokens": "steps"}})
    models: ModelSettings
    scoring: ScoringOptions
    output: Output
    check_grouping: bool = False
    config: File | None = None


@dataclass(frozen=True)
class Options:
    """Caption a dataset into a folder, score it and write a report; --resume goes on with it.

    Attributes:
        dataset: Dataset: coco, karpathy, nocaps, senticap, flickr30k, flickrstyle10k or folder.
    """

    dataset: str = field(metadata={"argument": "DATASET"})
    evaluation: Evaluation


def run(options: Options) -> int:
    """Caption a dataset; return 0 if every image has a caption, else 1."""
    from fuseprompt.evaluation.datasets import read_dataset
    from fuseprompt.evaluation.report import conclude
    from fuseprompt.evaluation.runs.evaluate import evaluate
    from fuseprompt.evaluation.runs.folder import compare, write_text
    from fuseprompt.evaluation.runs.workers import check_ray
    from fuseprompt.models.hub import silence_libraries

    chosen, scoring = options.evaluation, options.evaluation.scoring
    how, models = chosen.run, chosen.models
    if how.executor == "ray":
        check_ray()
    dataset = read_dataset(options.dataset, how.root, split=how.split, sentiment=how.sentiment)
    with Bar(quiet=chosen.output.quiet) as bar:

        def note(text: str) -> None:
            bar.note(f"note: {text}")

        for text in dataset.notes:
            note(text)
        has_sentiment = any(item.sentiment for item in dataset.items)
        bar.note(describe_models(models.models, model_ids(models.models), has_sentiment))
        if not scoring.no_score and (missing := _find_missing_tools(scoring.spice_folder)):
            note(missing)
        silence_libraries()
        show = _Status(bar).show
        caption = partial(evaluate, dataset, models=models, on_status=show, on_note=note)
        with _stoppable(how.out):
            found = caption(how, search=chosen.settings)
            agreement: dict[str, int | float] = {}
            if chosen.check_grouping:
                alone = replace(how, out=how.out / "alone", resume=True)
                other = caption(alone, search=replace(chosen.settings, group_size=1))
                agreement = compare(found, other)
                write_text(how.out / "grouping.json", json.dumps(agreement) + "\n")
            scores = conclude(
                found,
                dataset,
                with_scores=not scoring.no_score,
                spice_folder=scoring.spice_folder,
                on_note=note,
            )
    print_run(found, scores, agreement=agreement, as_json=chosen.output.json)
    return 0 if found.num_missing == 0 else 1


def print_run(run: "Run", scores: Any, *, agreement: Any = None, as_json: bool) -> None:
    """Print scores by part, failures and what `--check-grouping` found, if it was asked for."""
    if as_json:
        content = {
            "run": str(run.folder),
            "dataset": run.settings.dataset,
            "split": run.settings.split,
            "settings": run.settings.hash,
            "captions": len(run.captions),
            "failures": len(run.failures),
            "missing": run.num_missing,
            "scores": {part: one.as_json() for part, one in scores.items()},
        }
        print(json.dumps({**content, **({"grouping": agreement} if agreement else {})}))
        return
    print(f"{run.folder}: {len(run.captions):,} of {run.scope.num_shard_jobs:,} captions")
    for record in list(run.failures.values())[:10]:
        print(f"  failed: {record.id}: {record.error}")
    if len(run.failures) > 10:
        print(f"  and {len(run.failures) - 10:,} more failures")
    if agreement:
        print(
            f"  grouping: {agreement['num_differing']:,} of {agreement['num_captions']:,} captions "
            "differ when every image is searched alone; losses of the others agree to "
            f"{agreement['largest_difference']:.0e}"
        )
    print_scores(scores)
    print(f"Report: {run.folder / 'report.md'}")


def _find_missing_tools(spice_folder: Path | None) -> str:
    """Return, before the work, which scores will be missing after it, or nothing."""
    from fuseprompt.evaluation.metrics.coco_tools import find_corenlp, find_java, library_folder

    missing = "the published metrics"
    try:
        library_folder()
        find_java()
        missing = "SPICE"
        if spice_folder is not None:
            find_corenlp(spice_folder)
    except MetricError as error:
        return f"{missing} will be missing: {error}"
    return ""


class _Status:
    """How far a run is: in the bar on a terminal, otherwise a line a minute."""

    def __init__(self, bar: Bar) -> None:
        self._bar, self._last_line = bar, time.monotonic()

    def show(self, status: "Status") -> None:
        """Show how far the run is."""
        pace, rest = "none yet", ""
        if status.num_new:
            each = max(status.seconds, 1e-9) / status.num_new
            left = each * (status.num_jobs - status.num_done - status.num_failed)
            pace = f"{3600 / each:,.0f} an hour"
            rest = f", {describe_seconds(left)} left"
        failed = f", {status.num_failed:,} failed" if status.num_failed else ""
        line = f"{status.num_done:,}/{status.num_jobs:,} captions{failed}, {pace}{rest}"
        self._bar.show(line, 0, 0)
        if not self._bar.is_shown and time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            self._bar.note(line)


@contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """Let SIGTERM end a run in good order (exit code 143), and print what is safe of it."""
    from fuseprompt.evaluation.runs.folder import JOURNAL
    from fuseprompt.evaluation.runs.journal import newest, read_journal

    def stop(_number: int, _frame: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        num_safe = sum(r.ok for r in newest(read_journal(folder / JOURNAL)).values())
        how = f"stopped: {num_safe:,} captions are safe in {folder}; go on with --resume"
        print(how, file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
