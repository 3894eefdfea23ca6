"""`fuseprompt datasets`: what a dataset needs, where people get it, whether it is complete."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseprompt.cli.options import Output
from fuseprompt.errors import UsageError
from fuseprompt.tasks.kinds import (
    Folder,
    Name,
)

if TYPE_CHECKING:
    from fuseprompt.evaluation.datasets import Source


@dataclass(frozen=True)
class Options:
    """Print what captioning datasets need and where people get them; with --root, check one.

    Attributes:
        name: Dataset, such as coco; all by default.
        root: Look whether the dataset is complete in this folder.
        split: Split to check; the first listed by default.
        sentiment: Sentiment to check, where there are any; all by default.
    """

    output: Output
    name: str | None = field(default=None, metadata={"argument": "NAME"})
    root: Folder | None = None
    split: Name | None = None
    sentiment: Name | None = None


def run(options: Options) -> int:
    """List the datasets, or check one; return 1 if it is not as it was published, else 0."""
    from fuseprompt.evaluation.datasets import NAMES, find_source
    from fuseprompt.evaluation.datasets.read import check_dataset

    name, root, output = options.name, options.root, options.output
    if root is None:
        if options.split is not None or options.sentiment is not None:
            raise UsageError("--split and --sentiment choose what to check: give --root DIR, too.")
        for each in NAMES if name is None else (name,):
            source = find_source(each)
            if output.json:
                print(json.dumps({"dataset": each, **asdict(source)}))
            elif output.quiet:
                print(each)
            else:
                _print_source(each, source)
        return 0
    if name is None:
        raise UsageError(f"--root: of which dataset? Name one of {', '.join(NAMES)}.")
    check = check_dataset(name, root, split=options.split, sentiment=options.sentiment)
    if output.json:
        print(json.dumps(check))
    else:
        _print_check(check, root, quiet=output.quiet)
    return 0 if check["complete"] else 1


def _print_source(name: str, source: "Source") -> None:
    print(f"{name}: {source.title}")
    splits = [
        f"{split} ({source.counts[split].images:,} images)" if split in source.counts else split
        for split in source.splits
    ]
    rows = {
        "splits": [", ".join(splits)],
        "sentiments": [", ".join(source.sentiments)] if source.sentiments else [],
        "files": source.files,
        "images": [", ".join(source.images)],
        "get it": source.origin,
        "terms": [source.licence] if source.licence else [],
        "mind": source.remarks,
    }
    for label, lines in rows.items():
        for index, line in enumerate(lines):
            print(f"  {label if index == 0 else '':12}{line}")
    print()


def _print_check(check: Mapping[str, Any], root: Path, *, quiet: bool) -> None:
    if not quiet:
        sentiments, domains = (
            f" ({', '.join(f'{count:,} {name}' for name, count in counts.items())})" * bool(counts)
            for counts in (check["by_sentiment"], check["by_domain"])
        )
        print(f"{check['dataset']}, split {check['split']}, in {root}")
        print(f"  images       {check['images']:,}{domains}")
        print(f"  captions     {check['references']:,} by people")
        print(f"  to write     {check['captions_to_write']:,}{sentiments}")
        print(f"  fingerprint  {check['fingerprint'][:16]}")
    if missing := check["missing"]:
        more = ", ..." if missing > len(check["first_missing"]) else ""
        listed = ", ".join(check["first_missing"])
        print(f"  {missing:,} images are missing or empty: {listed}{more}")
    for note in check["notes"]:
        print(f"  {note}")
    if check["complete"] and not quiet:
        print("  complete")
