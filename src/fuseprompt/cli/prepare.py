"""`fuseprompt prepare`: make the offline models on this machine, once."""

import json
import sys
import time
from dataclasses import dataclass

from fuseprompt.cli.options import Output


@dataclass(frozen=True)
class Options:
    """Make the offline models on this machine, once.

    Attributes:
        force: Make all of them anew.
    """

    output: Output
    force: bool = False


def run(options: Options) -> int:
    """Download and convert the offline models, at once if they are there; return 0."""
    prepare(force=options.force, quiet=options.output.quiet, as_json=options.output.json)
    return 0


def prepare(*, force: bool = False, quiet: bool = False, as_json: bool = False) -> None:
    """Make what is missing."""
    from fuseprompt.offline.manifest import models_dir, read_manifest
    from fuseprompt.offline.prepare import prepare_models

    started = time.monotonic()
    made = prepare_models(force=force, quiet=quiet)
    seconds = time.monotonic() - started
    size = sum(entry["size"] for entry in read_manifest().values())
    if as_json:
        facts = {"folder": str(models_dir()), "made": made, "bytes": size}
        print(json.dumps({**facts, "seconds": round(seconds, 2)}))
    elif not quiet:
        state = f"prepared in {seconds:.0f} s" if made else "ready"
        print(f"Offline models {state}: {size / 1e6:.0f} MB in {models_dir()}", file=sys.stderr)
