"""What a score is: a number, a number with the judge that gave it, or the reason why there is none.

No metric is computed here. Read next: `fuseprompt.evaluation.metrics.score`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, final

from fuseprompt.errors import FuseError

_T = TypeVar("_T")


@final
@dataclass(frozen=True)
class Unavailable:
    """A metric that could not run; the others can.

    Attributes:
        reason: What is missing, and what brings it.
    """

    reason: str


#: A metric's value, or why there is none.
Value = float | Unavailable


@final
@dataclass(frozen=True)
class Judged:
    """A score that depends on who gave it: a model or a lexicon.

    Attributes:
        value: The score.
        by: Id of the model, or name of the lexicon.
        independent: Whether the captions were *not* optimised for this judge; None if nobody said.
            If they were, the score says how well the search did, not how good the captions are.
        details: What helps to read the value, such as the judge's score on captions by people.
    """

    value: float
    by: str
    independent: bool | None
    details: Mapping[str, float] = field(default_factory=dict)


#: The metrics of the published tables, in their order, as contracts and JSON name them.
METRICS: Final = (
    "bleu_1",
    "bleu_2",
    "bleu_3",
    "bleu_4",
    "meteor",
    "rouge_l",
    "cider",
    "spice",
)


@final
@dataclass(frozen=True)
class Scores:
    """The scores of one set of captions, raw: from 0 to 1, CIDEr-D from 0 to 10.

    Attributes:
        images: Images whose captions were scored, a missing caption counting as an empty one.
        coverage: Share of the images of the split that have a caption, from 0 to 1.
        bleu_1: Clipped precision of words, over the whole set, times the brevity penalty.
        bleu_2: The geometric mean of the precisions of words and pairs, likewise.
        bleu_3: Up to three words.
        bleu_4: Up to four words.
        meteor: METEOR 1.5 of the whole set.
        rouge_l: Mean ROUGE-L over images.
        cider: Mean CIDEr-D over images, from 0 to 10.
        spice: Mean SPICE over images.
        extra: Further measures by name, such as "clip_score".
        notes: What a reader of the numbers has to know.
    """

    images: int
    coverage: float
    bleu_1: Value
    bleu_2: Value
    bleu_3: Value
    bleu_4: Value
    meteor: Value
    rouge_l: Value
    cider: Value
    spice: Value
    extra: Mapping[str, Value | Judged] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the scores as JSON values; what has none is `{"unavailable": reason}`."""
        values = {name: getattr(self, name) for name in METRICS} | dict(self.extra)
        shown = {name: _as_json(value) for name, value in values.items()}
        return {"images": self.images, "coverage": self.coverage, **shown}


def attempt(compute: Callable[[], _T]) -> _T | Unavailable:
    """Return what a function computes, or why it could not."""
    try:
        return compute()
    except FuseError as error:
        return Unavailable(str(error))
    except Exception as error:  # Whatever a library raises must not cost the other metrics.
        return Unavailable(f"{type(error).__name__}: {' '.join(str(error).split())}")


def _as_json(value: Value | Judged) -> Any:
    if isinstance(value, Unavailable):
        return {"unavailable": value.reason}
    if isinstance(value, Judged):
        shown = {"value": value.value, "by": value.by, "independent": value.independent}
        return shown | dict(value.details)
    return value
