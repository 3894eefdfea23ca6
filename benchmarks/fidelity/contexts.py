"""Where the fidelity benchmark edits: beginnings of 200 captions, and what to compare them with.

Caption i is cut after 3, 8 or 15 words (i mod 3). *Append* puts a token behind the cut text;
*replace* puts one in place of a word in its middle. The targets of a context are other captions,
the first of them one of the same picture, and pictures, both drawn with a seed. Captions and image
vectors are in `benchmarks/data` (fidelity.LICENSE.txt). Read next:
`benchmarks.fidelity.exact_losses`.
"""

import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, final

from jaxtyping import Float
from torch import Tensor

from fuseprompt.errors import ProblemError
from fuseprompt.text.tokenizer import Tokenizer

_DATA: Final = Path(__file__).parents[1] / "data"

#: Words that caption i keeps: WORDS[i % 3].
WORDS: Final = (3, 8, 15)

NUM_TARGETS: Final = 8

EDITS: Final = ("append", "replace")

#: A word with the blank before it, and another word behind it.
_MIDDLE_WORD: Final = re.compile(r" \S+(?= \S)")


@final
@dataclass(frozen=True)
class Context:
    """A place in a text where a token may go: a candidate's text is left + token + right.

    Attributes:
        index: Which caption.
        edit: "append" or "replace".
        left: Text before the token.
        right: Text after it, "" for append.
    """

    index: int
    edit: str
    left: str
    right: str


@cache
def captions() -> tuple[tuple[str, str], ...]:
    """Return the captions, each with another caption of the same picture."""
    lines = (_DATA / "fidelity_captions.tsv").read_text("utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    return tuple((caption, other) for caption, other in rows)


def make_context(index: int, edit: str, tokenizer: Tokenizer) -> Context:
    """Return one context.

    What *replace* takes out is a whole word, neither the first nor the last one, and one of one
    token where there is such a word.

    Args:
        index: Which caption, 0 to 199.
        edit: "append" or "replace".
        tokenizer: The primary's.

    Returns:
        The context.

    Raises:
        ProblemError: If there is no such caption or edit.
    """
    if not 0 <= index < len(captions()) or edit not in EDITS:
        raise ProblemError(
            f"context {index}, edit {edit!r}: expected 0 to {len(captions()) - 1}, and an edit "
            f"among {', '.join(EDITS)}."
        )
    text = " ".join(captions()[index][0].split()[: WORDS[index % 3]])
    if edit == "append":
        return Context(index, edit, text, "")
    ids, spans = tokenizer.encode_with_offsets(text)
    pieces = [text[a:b] for a, b in spans]
    places = [
        i
        for i in range(1, len(ids) - 1)
        if pieces[i].startswith(" ") and pieces[i].strip() and pieces[i + 1].startswith(" ")
    ]
    found = [spans[i] for i in places] or [m.span() for m in _MIDDLE_WORD.finditer(text)]
    start, end = random.Random(f"place {index}").choice(found)
    return Context(index, edit, text[:start], text[end:])


def target_texts(index: int) -> tuple[str, ...]:
    """Return the target texts of a context: a caption of the same picture, then of others."""
    others = [i for i in range(len(captions())) if i != index]
    drawn = random.Random(f"texts {index}").sample(others, NUM_TARGETS - 1)
    return tuple(captions()[i][1] for i in (index, *drawn))


def target_pictures(index: int) -> Float[Tensor, "t o"]:
    """Return the vectors of the target pictures of a context."""
    vectors = _pictures()
    return vectors[random.Random(f"pictures {index}").sample(range(len(vectors)), NUM_TARGETS)]


@cache
def _pictures() -> Float[Tensor, "p o"]:
    from safetensors.torch import load
    from torch.nn.functional import normalize

    return normalize(
        load((_DATA / "fidelity_pictures.safetensors").read_bytes())["vectors"].float(), dim=-1
    )
