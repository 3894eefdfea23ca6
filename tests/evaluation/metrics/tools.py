"""Stand-ins for tests of metrics: a `java` that is a script, and what is installed here."""

import gzip
from pathlib import Path

import pytest

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics import coco_tools


def _library() -> Path | None:
    try:
        return coco_tools.library_folder()
    except MetricError:
        return None


def _has_java() -> bool:
    try:
        return coco_tools.find_java().is_file()
    except MetricError:
        return False


LIBRARY = _library()

needs_library = pytest.mark.skipif(LIBRARY is None, reason="needs pycocoevalcap")

#: CI installs pycocoevalcap, but has no Java on some machines.
needs_tools = pytest.mark.skipif(
    LIBRARY is None or not _has_java(), reason="needs Java and pycocoevalcap"
)


def fake_java(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a shell script in place of Java.

    `script` runs with the arguments of the call, in the folder of the call's files.
    """
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder))
    return path


def use_light_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    """Use a copy of pycocoevalcap, by links, whose METEOR has a small table of paraphrases.

    The real table takes METEOR 15 s to read.
    """
    if LIBRARY is None:
        return None
    folder.mkdir(parents=True)
    for part in ("tokenizer", "bleu", "rouge", "cider", "spice"):
        (folder / part).symlink_to(LIBRARY / part)
    data = folder / "meteor" / "data"
    data.mkdir(parents=True)
    # METEOR looks for its own parts beside the jar: a link to it is enough.
    (folder / "meteor" / "meteor-1.5.jar").symlink_to(LIBRARY / "meteor" / "meteor-1.5.jar")
    with gzip.open(data / "paraphrase-en.gz", "wt") as table:
        table.write("0.5\na dog\na hound\n")
    monkeypatch.setattr(coco_tools, "library_folder", lambda: folder)
    return folder
