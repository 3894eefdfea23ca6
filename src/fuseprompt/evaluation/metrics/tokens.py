"""Captions cut into words as the published numbers cut them: Stanford's PTB tokenizer 3.4.1.

Lower case, punctuation removed, brackets kept as "-lrb-" (a fault of the original that every
published number has). The jar and the list of punctuation are pycocoevalcap's; it is run from here
because the package writes beside its own code, and because it shifts all later captions by one
image where a caption has a line break that is no line feed. Read next:
`fuseprompt.evaluation.metrics.overlap`.
"""

import importlib.util
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.clean import clean_caption
from fuseprompt.evaluation.metrics.base import Unavailable
from fuseprompt.evaluation.metrics.java import Java, free_heap, run_java

#: Tokens that stand for no text; PTB would make five words of "<|endoftext|>".
_SPECIAL: Final = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|</?s>|<pad>|<unk>|<eos>|<bos>|<mask>|</?(?:start|end)_of_turn>"
    r"|\[(?:CLS|SEP|PAD|UNK|MASK)\]"
)


def strip_special(text: str) -> str:
    """Return a text without special tokens, such as "<|endoftext|>", "</s>" or "[SEP]"."""
    return _SPECIAL.sub(" ", text)


def library_folder() -> Path | Unavailable:
    """Return the folder of pycocoevalcap, or why it cannot be used."""
    found = importlib.util.find_spec("pycocoevalcap")
    places = [] if found is None else list(found.submodule_search_locations or ())
    if not places:
        return Unavailable(
            "The package pycocoevalcap is not installed. "
            'Install it (104 MB): pip install "fuseprompt[metrics]".'
        )
    return Path(places[0])


def tokenize(texts: Sequence[str], java: Java, library: Path) -> list[str]:
    """Cut texts into words.

    Args:
        texts: Captions; line breaks and control characters in them count as blanks.
        java: Runtime for the tokenizer.
        library: Folder of pycocoevalcap.

    Returns:
        One line of words with blanks between them per text, in order; empty for one without words.

    Raises:
        MetricError: If the tokenizer fails, or gives another number of lines than it got.
    """
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS, STANFORD_CORENLP_3_4_1_JAR

    removed = frozenset(PUNCTUATIONS)
    with tempfile.TemporaryDirectory(prefix="fuseprompt-") as place:
        folder = Path(place)
        lines = "".join(f"{clean_caption(text)}\n" for text in texts)
        (folder / "captions.txt").write_bytes(lines.encode())
        jar = library / "tokenizer" / STANFORD_CORENLP_3_4_1_JAR
        options = ["-cp", jar, "edu.stanford.nlp.process.PTBTokenizer"]
        printed = run_java(
            java,
            [*options, "-preserveLines", "-lowerCase", "captions.txt"],
            folder=folder,
            timeout=120 + 0.05 * len(texts),
            heap=free_heap(1024),
        )
    rows = printed.split("\n")[:-1]
    if len(rows) != len(texts):
        raise MetricError(
            f"The PTB tokenizer gave {len(rows)} lines for {len(texts)} captions, so captions and "
            "images no longer match. Look for odd characters in the captions."
        )
    return [" ".join(word for word in row.split() if word not in removed) for row in rows]
