"""`fuseprompt datasets`: what a dataset needs and where people get it."""

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from fuseprompt.cli.options import Output

if TYPE_CHECKING:
    from fuseprompt.evaluation.datasets import Source


@dataclass(frozen=True)
class Options:
    """Print what captioning datasets need and where people get them.

    Attributes:
        name: Dataset, such as coco; all by default.
    """

    output: Output
    name: str | None = field(default=None, metadata={"argument": "NAME"})


def run(options: Options) -> int:
    """List the datasets; return 0."""
    from fuseprompt.evaluation.datasets import NAMES, find_source

    for name in NAMES if options.name is None else (options.name,):
        source = find_source(name)
        if options.output.json:
            print(json.dumps({"dataset": name, **asdict(source)}))
        elif options.output.quiet:
            print(name)
        else:
            _print_source(name, source)
    return 0


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
