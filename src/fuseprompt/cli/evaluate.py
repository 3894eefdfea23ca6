"""`fuseprompt evaluate`: caption a dataset, score it and write the report.

A thin layer over `fuseprompt.evaluation.runs.evaluate`, which is to be read next.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from fuseprompt.cli.bar import Bar, silence_libraries
from fuseprompt.cli.caption import (
    describe_models,
    read_temperature,
    read_weights,
    search_size,
)
from fuseprompt.cli.parser_base import UsageError
from fuseprompt.cli.score import print_scores
from fuseprompt.errors import MetricError
from fuseprompt.evaluation.datasets import Dataset, read_dataset
from fuseprompt.evaluation.metrics.coco_tools import find_corenlp, find_java, library_folder
from fuseprompt.evaluation.runs.conclude import conclude
from fuseprompt.evaluation.runs.evaluate import Plan, Status, evaluate
from fuseprompt.evaluation.runs.folder import JOURNAL, Run, has_settings, read_settings, write_text
from fuseprompt.evaluation.runs.journal import newest, read_journal
from fuseprompt.evaluation.runs.merge import compare
from fuseprompt.evaluation.runs.plan import read_shard
from fuseprompt.evaluation.runs.searcher import MakeCaptioner, settings_of
from fuseprompt.evaluation.runs.workers import StartWorker, local_workers
from fuseprompt.models.hub import pick_device
from fuseprompt.tasks.caption import CaptionSettings
from fuseprompt.tasks.models import model_ids
from fuseprompt.tasks.transfers import transfer_named

#: Seconds between two lines about progress where nobody is looking at a terminal.
LINE_SECONDS: Final = 60.0

#: Folder in a run for `--check-grouping`.
ALONE: Final = "alone"


def evaluate_dataset(args: Any) -> int:
    """Caption a dataset.

    Args:
        args: Parsed options (`fuseprompt.cli.parser_runs`).

    Returns:
        Exit code: 0 if every image has a caption, else 1.

    Raises:
        UsageError: If an option is missing or malformed.
        FuseError: If the dataset, the models or the folder cannot be used.
    """
    name_of_dataset = args.get("dataset")
    for name, value in (("DATASET", name_of_dataset), ("--root", args.root), ("--out", args.out)):
        if not value:
            raise UsageError(f"{name} is required, as an argument or in the file of --config.")
    if args.executor == "ray":
        from fuseprompt.evaluation.runs.ray_workers import check_ray

        check_ray()
    told = _Teller(quiet=args.quiet)
    dataset = read_dataset(
        name_of_dataset, Path(args.root), split=args.split, sentiment=args.sentiment
    )
    for note in dataset.notes:
        told.note(note)
    make, num_workers = _workers(args, dataset)
    plan = _plan(args, num_workers)
    settings = settings_of(make, dataset)
    if not args.quiet:
        ids = make.ids
        print(describe_models(args.models, ids, any(make.sentiments)), file=sys.stderr)
    if not args.no_score:
        _tell_missing_tools(told, args.spice_folder)
    silence_libraries()

    def open_workers() -> AbstractContextManager[StartWorker]:
        if args.executor == "ray":
            from fuseprompt.evaluation.runs.ray_workers import ray_workers

            gpus = args.gpus_per_worker if settings.device == "cuda" else 0.0
            return ray_workers(make, num_workers=num_workers, threads=make.threads, gpus=gpus)
        return local_workers(make)

    with _stopped_by_sigterm(), _told_what_is_safe(plan.folder):
        run = _captioned(dataset, settings, plan, open_workers, told)
        agreement: dict[str, Any] = {}
        if args.check_grouping:
            alone = replace(plan, folder=plan.folder / ALONE, resume=True)
            other = _captioned(dataset, replace(settings, group_size=1), alone, open_workers, told)
            agreement = asdict(compare(run, other))
            write_text(plan.folder / "grouping.json", json.dumps(agreement) + "\n")
        scores = conclude(
            run,
            dataset,
            with_scores=not args.no_score,
            spice_folder=None if args.spice_folder is None else Path(args.spice_folder),
            on_note=told.note,
        )
    print_run(run, scores, agreement=agreement, as_json=args.json)
    return 0 if run.num_missing == 0 else 1


def print_run(run: Run, scores: Any, *, agreement: Any = None, as_json: bool) -> None:
    """Print what came of a run on stdout.

    Args:
        run: The run.
        scores: Scores by part.
        agreement: What `--check-grouping` found, if it was asked for.
        as_json: Print a JSON line.
    """
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
    asked = run.scope.num_shard_jobs
    print(f"{run.folder}: {len(run.captions):,} of {asked:,} captions")
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


def _captioned(
    dataset: Dataset,
    settings: Any,
    plan: Plan,
    open_workers: Callable[[], AbstractContextManager[StartWorker]],
    told: "_Teller",
) -> Run:
    with told.watching():
        return evaluate(
            dataset,
            settings,
            plan=plan,
            open_workers=open_workers,
            on_status=told.status,
            on_note=told.note,
        )


def _plan(args: Any, num_workers: int) -> Plan:
    return Plan(
        folder=Path(args.out),
        root=str(args.root),
        sentiment=args.sentiment,
        shard=read_shard(args.shard),
        limit=args.limit,
        resume=args.resume,
        num_workers=num_workers,
        max_failures=args.max_failures,
        hours=args.hours,
        group_timeout=args.group_timeout,
    )


def _workers(args: Any, dataset: Dataset) -> tuple[MakeCaptioner, int]:
    """Return what makes workers, and how many there are to be."""
    import torch

    sentiments = tuple(sorted({item.sentiment for item in dataset.items}))
    is_toned = any(sentiments)
    weights = read_weights(args.weight or [], has_sentiment=is_toned)
    temperature = read_temperature(args.sentiment_temperature, has_sentiment=is_toned)
    kind = pick_device(args.device).type
    gpus = torch.cuda.device_count() if args.device in ("auto", "cuda") else 1
    num_workers = args.workers or (gpus if kind == "cuda" else 1)
    threads = args.threads
    out = Path(args.out)
    if threads is None and args.resume and has_settings(out):
        threads = read_settings(out)[0].threads
    threads = threads or max(1, len(os.sched_getaffinity(0)) // num_workers)
    beam_width, search_width = search_size(args.models, args.beam_width, args.search_width)
    settings = CaptionSettings(
        prefix=args.prefix,
        weights=weights,
        sentiment_temperature=temperature,
        transfer=transfer_named(args.transfer),
        steps=args.steps,
        beam_width=beam_width,
        search_width=search_width,
        seed=args.seed,
        group_size=args.group_size,
    )
    device = kind if args.device == "auto" else str(args.device)
    ids = model_ids(args.models)
    make = MakeCaptioner(ids, settings, sentiments, device, threads)
    return make, num_workers


def _tell_missing_tools(told: "_Teller", spice_folder: str | None) -> None:
    """Say before the work which scores will be missing after it."""
    missing = "the published metrics"
    try:
        library_folder()
        find_java()
        missing = "SPICE"
        if spice_folder is not None:
            find_corenlp(Path(spice_folder))
    except MetricError as error:
        told.note(f"{missing} will be missing: {error}")


class _Teller:
    """Says on stderr how far a run is: a bar on a terminal, else a line a minute.

    Args:
        quiet: Say nothing.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Bar | None = None
        self._last_line = time.monotonic()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Show the bar meanwhile, on a terminal."""
        if self._quiet or not sys.stderr.isatty():
            yield
            return
        with Bar(0, quiet=False, what="captions") as self._bar:
            yield
        self._bar = None

    def note(self, text: str) -> None:
        """Say something that a person should know."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.tell(f"note: {text}")
        else:
            print(f"note: {text}", file=sys.stderr, flush=True)

    def status(self, status: Status) -> None:
        """Show how far the run is."""
        pace = f"{status.captions_per_hour:,.0f} an hour" if status.num_new else "none yet"
        if self._bar is not None:
            done = status.num_done + status.num_failed
            self._bar.show(done, status.num_jobs, pace)
        elif not self._quiet and time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            left = status.seconds_left
            rest = "" if left is None else f", {describe_seconds(left)} left"
            failed = f", {status.num_failed:,} failed" if status.num_failed else ""
            print(
                f"{status.num_done:,}/{status.num_jobs:,} captions{failed}, {pace}{rest}",
                file=sys.stderr,
                flush=True,
            )


def describe_seconds(seconds: float) -> str:
    """Return a time as a person says it, such as "3 h 05 min"."""
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60:,} h {minutes % 60:02} min"


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Leave in good order when a scheduler asks for it: exit code 143."""

    def stop(_number: int, _frame: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _told_what_is_safe(folder: Path) -> Iterator[None]:
    """Say how many captions are safe when a run is stopped.

    Yields:
        Nothing.

    Raises:
        KeyboardInterrupt: After it was said.
        SystemExit: Likewise.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        safe = [r for r in newest(read_journal(folder / JOURNAL)).values() if r.ok]
        print(
            f"stopped: {len(safe):,} captions are safe in {folder}; go on with --resume",
            file=sys.stderr,
        )
        raise
