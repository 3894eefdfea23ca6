"""Stand-ins for tests of metrics: a `java` that is a script, and what is installed here."""

import gzip
from pathlib import Path

import pytest

from fuseprompt.evaluation.metrics.base import Unavailable
from fuseprompt.evaluation.metrics.java import Java, find_java
from fuseprompt.evaluation.metrics.tokens import library_folder

JAVA = find_java()
LIBRARY = library_folder()

#: CI installs pycocoevalcap, but has no Java on some machines.
needs_tools = pytest.mark.skipif(
    isinstance(JAVA, Unavailable) or isinstance(LIBRARY, Unavailable),
    reason="needs Java and pycocoevalcap",
)


def real_tools() -> tuple[Java, Path]:
    """Return Java and the folder of pycocoevalcap, in tests that are marked `needs_tools`."""
    assert isinstance(JAVA, Java)
    assert isinstance(LIBRARY, Path)
    return JAVA, LIBRARY


def fake_java(folder: Path, script: str, *, version: str = "17.0.1") -> Java:
    """Write a shell script that answers as `java` does, into folder/bin.

    `script` runs with the arguments of the call, in the folder that the call names.
    """
    place = folder / "bin"
    place.mkdir(parents=True, exist_ok=True)
    path = place / "java"
    path.write_text(
        "#!/bin/sh\n"
        f"case \"$*\" in *-version*) echo '    java.version = {version}' >&2; exit 0;; esac\n"
        f"{script}\n"
    )
    path.chmod(0o755)
    return Java(path, version)


def light_library(folder: Path, library: Path) -> Path:
    """Return a copy of pycocoevalcap, by links, whose METEOR has a small table of paraphrases.

    The real table takes METEOR 15 s to read.
    """
    folder.mkdir(parents=True)
    for part in ("tokenizer", "bleu", "rouge", "cider", "spice"):
        (folder / part).symlink_to(library / part)
    data = folder / "meteor" / "data"
    data.mkdir(parents=True)
    # METEOR looks for its own parts beside the jar: a link to it is enough.
    (folder / "meteor" / "meteor-1.5.jar").symlink_to(library / "meteor" / "meteor-1.5.jar")
    with gzip.open(data / "paraphrase-en.gz", "wt") as table:
        table.write("0.5\na dog\na hound\n")
    return folder
