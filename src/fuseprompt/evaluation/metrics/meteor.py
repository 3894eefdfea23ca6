"""METEOR 1.5 by its authors' program, in one run over a file of captions.

pycocoevalcap talks to the program line by line, which hangs the interpreter when a line is odd. A
file gives bit-identical scores and can be killed. Read next: `fuseprompt.evaluation.metrics.spice`.
"""

import math
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics.java import Java, free_heap, run_java
from fuseprompt.evaluation.metrics.overlap import Words


def meteor(words: Words, java: Java, library: Path) -> float:
    """Return METEOR 1.5 of the whole set, from 0 to 1.

    Args:
        words: Tokenized captions and references.
        java: Runtime for the program.
        library: Folder of pycocoevalcap, whose jar and paraphrase table are used.

    Returns:
        The system-level score; it is no mean over images.

    Raises:
        MetricError: If the program fails or answers something else.
    """
    most = max(len(lines) for lines in words.references.values())
    with tempfile.TemporaryDirectory(prefix="fuseprompt-") as place:
        folder = Path(place)
        _write(folder / "captions.txt", words.captions.values())
        # Every image must have as many references; repeating one changes no score.
        padded = [
            line
            for lines in words.references.values()
            for line in (*lines, *[lines[-1]] * (most - len(lines)))
        ]
        _write(folder / "references.txt", padded)
        home = library / "meteor"
        # The program finds its paraphrases by itself, but not in a folder with a blank in its name.
        paraphrases = home / "data" / "paraphrase-en.gz"
        options: list[str | Path] = ["-l", "en", "-norm", "-r", str(most), "-a", paraphrases]
        printed = run_java(
            java,
            ["-jar", home / "meteor-1.5.jar", "captions.txt", "references.txt", *options],
            folder=folder,
            timeout=300 + 0.1 * len(words.captions) * most,
            heap=free_heap(2048),
        )
    segments = len(re.findall(r"^Segment \d+ score:", printed, flags=re.MULTILINE))
    found = re.search(r"^Final score:\s+([\d.Ee-]+)\s*$", printed, flags=re.MULTILINE)
    if found is None or segments != len(words.captions) or not math.isfinite(float(found[1])):
        raise MetricError(
            f"METEOR scored {segments} of {len(words.captions)} captions and ended with "
            f"{printed.strip()[-80:]!r}; expected 'Final score:' and a number."
        )
    return float(found[1])


def _write(file: Path, lines: Iterable[str]) -> None:
    file.write_bytes("".join(f"{line}\n" for line in lines).encode())
