"""`fuseprompt prepare`: make the offline models on this machine, once.

A thin layer over `fuseprompt.offline.prepare` (the models) and `fuseprompt.tasks.tables` (the
word tables that captions need): it only decides what is printed. Read next: the former.
"""

import json as json_format
import sys
from collections.abc import Sequence
from functools import partial

from fuseprompt.errors import PrepareError
from fuseprompt.tasks.tables import SECONDARIES


def prepare(
    *,
    force: bool = False,
    quiet: bool = False,
    json: bool = False,
    tables: Sequence[str] = SECONDARIES,
) -> int:
    """Download and convert the offline models; returns at once if they are there.

    Args:
        force: Make all of them anew.
        quiet: Print nothing but errors.
        json: Print one JSON object on stdout when done: folder, models made now, bytes, seconds.
        tables: Secondaries whose word table is made too; it costs 20 s each, and `caption` does not
            wait for those that it will not use.

    Returns:
        Exit code 0.

    Raises:
        PrepareError: If it fails; the message says what to do. Finished models and tables stay.
    """
    from fuseprompt.offline.manifest import read_manifest
    from fuseprompt.offline.prepare import prepare_models

    done = prepare_models(force=force, quiet=quiet)
    _prepare_word_tables(tables, quiet=quiet)
    size = sum(entry.size for entry in read_manifest().values())
    if json:
        facts = {
            "folder": str(done.folder),
            "made": done.made,
            "bytes": size,
            "seconds": round(done.seconds, 2),
        }
        print(json_format.dumps(facts))
    elif not quiet:
        state = f"prepared in {done.seconds:.0f} s" if done.made else "ready"
        print(f"Offline models {state}: {size / 1e6:.0f} MB in {done.folder}", file=sys.stderr)
    return 0


def _prepare_word_tables(secondaries: Sequence[str], *, quiet: bool) -> None:
    """Make the word tables that are missing, with a progress bar on stderr.

    Raises:
        PrepareError: If one cannot be written.
    """
    from fuseprompt.tasks.tables import find_table, make

    missing = [name for name in secondaries if find_table(name) is None]
    if not missing:
        return
    from fuseprompt.cli.bar import Bar, silence_libraries

    silence_libraries()
    with Bar(len(missing), quiet=quiet, what="word tables") as bar:
        for name in missing:
            what = f"word table of offline:{name}"
            try:
                make(name, on_progress=partial(bar.on_making, what))
            except OSError as error:
                raise PrepareError(
                    f"The {what} cannot be written ({error}). Free some space, or set "
                    "FUSEPROMPT_CACHE to a folder that you may write to."
                ) from None
            bar.count_image()
