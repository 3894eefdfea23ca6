"""How much it matters which images are searched together: two runs, caption by caption.

A text has the same losses in every group, to the tolerance of the scores. A search may all the same
end elsewhere where two candidates are nearly equal, since a batch of another size rounds otherwise.
Read next: `fuseprompt.cli.evaluate`.
"""

from dataclasses import dataclass
from typing import final

from fuseprompt.evaluation.runs.folder import Run


@final
@dataclass(frozen=True)
class Agreement:
    """How two runs over the same images agree.

    Attributes:
        num_captions: Captions that both have.
        num_differing: Those whose texts differ.
        largest_difference: Of a term between equal texts, relative to max(1, the term).
    """

    num_captions: int
    num_differing: int
    largest_difference: float


def compare_runs(one: Run, other: Run) -> Agreement:
    """Compare two runs.

    Args:
        one: A run.
        other: Another, over the same images.

    Returns:
        How they agree.
    """
    pairs = [
        (record.found, other.captions[key].found)
        for key, record in one.captions.items()
        if key in other.captions
    ]
    num_differing, largest = 0, 0.0
    for a, b in pairs:
        assert a is not None  # Captions have been found.
        assert b is not None
        if a.text != b.text:
            num_differing += 1
            continue
        for name, value in a.terms.items():
            difference = abs(value - b.terms[name]) / max(1.0, abs(value))
            largest = max(largest, difference)
    return Agreement(len(pairs), num_differing, largest)
