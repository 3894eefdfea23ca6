"""A preparation with small fake models, as functions and as a program of its own.

`python -m tests.offline.fake_build SECONDS` prepares in $FUSEPROMPT_CACHE, taking SECONDS a
model, and prints the names of what it made.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fuseprompt.offline import convert, prepare
from fuseprompt.offline.manifest import RECIPES


def fake_converter(name: str, seconds: float) -> Callable[[convert.Sources, Path], None]:
    """Return a converter that writes two files, half of the time apart."""

    def write(sources: convert.Sources, folder: Path) -> None:
        for parent in RECIPES[name].parents:
            assert (sources.models / parent / "weights").read_text() == parent
        (folder / "config.json").write_text("{}")
        time.sleep(seconds)
        (folder / "weights").write_text(name)

    return write


def fake_converters(seconds: float) -> dict[str, Callable[[convert.Sources, Path], None]]:
    """Return a converter for each offline model."""
    return {name: fake_converter(name, seconds) for name in RECIPES}


def no_download(pinned: Sequence[str], folder: Path, *, quiet: bool) -> None:
    """Download nothing."""


if __name__ == "__main__":
    prepare.download_archives = no_download
    convert.CONVERTERS = fake_converters(float(sys.argv[1]))
    print(*prepare.prepare_models())
