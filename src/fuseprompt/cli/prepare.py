"""`fuseprompt prepare`: make the offline models on this machine, once."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fuseprompt.cli.bar import Bar
from fuseprompt.cli.options import Output
from fuseprompt.errors import PrepareError
from fuseprompt.tasks import tables


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


def prepare(
    *,
    force: bool = False,
    quiet: bool = False,
    as_json: bool = False,
    secondaries: Sequence[str] = tables.SECONDARIES,
) -> None:
    """Make what is missing, and the word tables of these secondaries, 20 s each."""
    from fuseprompt.offline.manifest import models_dir, read_manifest
    from fuseprompt.offline.prepare import prepare_models

    started = time.monotonic()
    made = prepare_models(force=force, quiet=quiet)
    seconds = time.monotonic() - started
    if missing := [name for name in secondaries if tables.find_table(name) is None]:
        from fuseprompt.models.hub import silence_libraries

        silence_libraries()
    with Bar(len(missing), "word tables", quiet=quiet) as bar:
        for name in missing:
            what = f"word table of offline:{name}"
            try:
                tables.make(name, on_progress=partial(bar.make, what))
            except OSError as error:
                raise PrepareError(
                    f"The {what} cannot be written ({error}). Free some space, or set "
                    "FUSEPROMPT_CACHE to a folder that you may write to."
                ) from None
            bar.advance()
    size = sum(entry["size"] for entry in read_manifest().values())
    if as_json:
        facts = {"folder": str(models_dir()), "made": made, "bytes": size}
        print(json.dumps({**facts, "seconds": round(seconds, 2)}))
    elif not quiet:
        state = f"prepared in {seconds:.0f} s" if made else "ready"
        print(f"Offline models {state}: {size / 1e6:.0f} MB in {models_dir()}", file=sys.stderr)
