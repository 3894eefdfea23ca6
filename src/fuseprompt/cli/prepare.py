"""`fuseprompt prepare`: make the offline models on this machine, once.

A thin layer over `fuseprompt.models.prepare.build` (the models) and `fuseprompt.tasks.tables` (the
word table that captions need): it only decides what is printed. Read next: the former.
"""

import json as json_format
import sys


def prepare(*, force: bool = False, quiet: bool = False, json: bool = False) -> int:
    """Download and convert the offline models; returns at once if they are there.

    Args:
        force: Make all of them anew.
        quiet: Print nothing but errors.
        json: Print one JSON object on stdout when done: folder, models made now, bytes, seconds.

    Returns:
        Exit code 0.

    Raises:
        PrepareError: If it fails; the message says what to do. Finished models stay.
    """
    from fuseprompt.models.offline import read_manifest
    from fuseprompt.models.prepare.build import prepare_models

    done = prepare_models(force=force, quiet=quiet)
    _prepare_word_table(quiet=quiet)
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


def _prepare_word_table(*, quiet: bool) -> None:
    """Make the word table if it is missing, with a progress bar on stderr."""
    from fuseprompt.tasks import tables

    if tables.is_ready():
        return
    from fuseprompt.cli.bar import Bar, silence_libraries

    silence_libraries()
    with Bar(0, quiet=quiet) as bar:
        tables.make(on_progress=lambda done, total: bar.on_making("word table", done, total))
