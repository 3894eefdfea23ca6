"""SPICE by its authors' program, where the user has the Stanford CoreNLP 3.6.0 that it needs.

The program comes with pycocoevalcap, CoreNLP (385 MB) with no package: it is taken from a folder
and never downloaded. Parses of references are kept from run to run; where that does not work (there
is no library for ARM, and no place for a very long caption), the program runs again without. The
measure to use without CoreNLP has another name: `fuseprompt.evaluation.metrics.scene_graph`, which
is to be read next.
"""

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Final

from fuseprompt.cache import cache_dir
from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics.base import Unavailable
from fuseprompt.evaluation.metrics.java import Java, free_heap, run_java
from fuseprompt.evaluation.metrics.overlap import Words

#: The two files that the program looks for.
_JARS: Final = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")

#: Folder of the archive in which CoreNLP 3.6.0 is handed out.
_UNPACKED: Final = "stanford-corenlp-full-2015-12-09"

#: Packages that the store of parses reaches into, which Java 16 and newer forbid unless told so.
_OPENED: Final = ("lang", "math", "util", "util.concurrent", "net", "text")


def find_corenlp(folder: Path | None) -> Path | Unavailable:
    """Return the folder that holds the jars of CoreNLP 3.6.0.

    Args:
        folder: What the user gave: that folder, or the one in which the archive was unpacked.

    Returns:
        The folder; or why SPICE cannot run.
    """
    if folder is None:
        return Unavailable(
            "SPICE needs Stanford CoreNLP 3.6.0, which no package brings. Download "
            f"{_UNPACKED}.zip (385 MB) from Stanford or from Maven Central, unpack it and give its "
            "folder: --spice-folder DIR. --scene-graph is a stand-in without it."
        )
    for place in (folder, folder / _UNPACKED):
        if all((place / jar).is_file() for jar in _JARS):
            return place
    missing = [jar for jar in _JARS if not (folder / jar).is_file()]
    return Unavailable(
        f"{folder} lacks {' and '.join(missing)}. Give the folder of Stanford CoreNLP 3.6.0; other "
        "versions give other scores."
    )


def spice(
    words: Words, java: Java, library: Path, corenlp: Path, *, timeout: float = 7200.0
) -> float:
    """Return the mean SPICE over images, from 0 to 1.

    Args:
        words: Tokenized captions and references.
        java: Runtime for the program.
        library: Folder of pycocoevalcap.
        corenlp: Folder of the jars of CoreNLP 3.6.0.
        timeout: Seconds after which the program is killed.

    Returns:
        The mean F-score of all tuples.

    Raises:
        MetricError: If the program fails, or answers for other images than it was asked about.
    """
    asked = [
        {"image_id": number, "test": words.captions[i], "refs": list(words.references[i])}
        for number, i in enumerate(words.captions)
    ]
    with tempfile.TemporaryDirectory(prefix="fuseprompt-") as place:
        folder = Path(place)
        (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
        try:
            _run(java, library, corenlp, folder=folder, timeout=timeout, keep=True)
        except (MetricError, OSError):
            _run(java, library, corenlp, folder=folder, timeout=timeout, keep=False)
        try:
            answer = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
            scores = {row["image_id"]: float(row["scores"]["All"]["f"]) for row in answer}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MetricError(f"SPICE wrote no scores that can be read ({error}).") from None
    if set(scores) != set(range(len(asked))):
        raise MetricError(f"SPICE scored {len(scores)} images, expected {len(asked)}.")
    # Without one tuple in the references there is nothing to find, and NaN is what it says.
    return sum(f if math.isfinite(f) else 0.0 for f in scores.values()) / len(scores)


def _run(
    java: Java, library: Path, corenlp: Path, *, folder: Path, timeout: float, keep: bool
) -> None:
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
    jars = [library / "spice" / "spice-1.0.jar", *(corenlp / jar for jar in _JARS)]
    options: list[str | Path] = ["-out", "scores.json", "-silent"]
    if keep:
        store = cache_dir() / "spice-v1"
        store.mkdir(parents=True, exist_ok=True)
        options += ["-cache", store]
    run_java(
        java,
        [
            *(opened if java.major >= 9 else ()),
            "-cp",
            os.pathsep.join(map(str, jars)),
            "edu.anu.spice.SpiceScorer",
            "asked.json",
            *options,
        ],
        folder=folder,
        timeout=timeout,
        heap=free_heap(8192),
    )
