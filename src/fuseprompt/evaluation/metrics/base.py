"""Settings and results of scoring; no metric is computed here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from fuseprompt.errors import FuseError

#: What a score by a model is worth, by whether the captions were not optimised for that model.
_KINDS: Final[Mapping[bool | None, str]] = {
    True: "which the captions were not optimised for",
    False: "**which the captions were optimised for**",
    None: "of which it is not known whether the captions were optimised for it (--optimised says)",
}

#: The metrics of the published tables, in their order, as JSON names them.
METRICS: Final = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider", "spice")


@final
@dataclass(frozen=True)
class Scoring:
    """Settings of scoring.

    Attributes:
        by_domain: Score each domain too.
        spice_folder: Folder of Stanford CoreNLP 3.6.0, without which SPICE cannot run.
        distinct: Add the share of different words and pairs of words.
        clip_score: Id of an image-text model; adds CLIPScore and RefCLIPScore.
        fluency: Id of a language model; adds nats per token.
        judges: Add the accuracy of the sentiment by vader, afinn or a classifier's id; may repeat.
        optimised: Id of a model that the captions were optimised for; may repeat. A run's are
            known.
    """

    by_domain: bool = False
    spice_folder: Path | None = None
    distinct: bool = False
    clip_score: str | None = None
    fluency: str | None = None
    judges: tuple[str, ...] = field(default=(), metadata={"option": "judge"})
    optimised: tuple[str, ...] | None = None


@final
@dataclass(frozen=True)
class Score:
    """A number, or the reason why there is none."""

    value: float | None
    note: str = ""  # Without a value: what is missing, and what brings it.
    by: str = ""  # The model or lexicon that the value depends on.
    independent: bool | None = None  # The captions were not optimised for that model.
    details: Mapping[str, float] = field(default_factory=dict)  # Numbers to compare it with.

    @property
    def origin(self) -> str:
        """The model that gave the value, what that is worth, and numbers to compare it with."""
        details = "".join(f"; {name} {number:.3f}" for name, number in self.details.items())
        return f"by {self.by}, {_KINDS[self.independent]}{details}"

    def as_json(self) -> Any:
        """Return a number, `{"unavailable": note}`, or an object where a model gave the number."""
        if self.value is None:
            return {"unavailable": self.note}
        if not self.by:
            return self.value
        return {"value": self.value, "by": self.by, "independent": self.independent, **self.details}


@final
@dataclass(frozen=True)
class Scores:
    """The scores of one set of captions, raw: from 0 to 1, CIDEr-D from 0 to 10."""

    images: int  # That were scored, a missing caption counting as an empty one.
    coverage: float  # Share of the images of the split that have a caption.
    values: Mapping[str, Score]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the scores as JSON values."""
        shown = {name: score.as_json() for name, score in self.values.items()}
        return {"images": self.images, "coverage": self.coverage, **shown}


def attempt(
    names: Sequence[str], compute: Callable[[], Sequence[float | Score]]
) -> dict[str, Score]:
    """Return what a function computes for each name, or under each name why it could not."""
    try:
        found = compute()
    except Exception as error:  # Whatever a library raises must not cost the other metrics.
        kind = "" if isinstance(error, FuseError) else f"{type(error).__name__}: "
        return dict.fromkeys(names, Score(None, kind + " ".join(str(error).split())))
    scores = (one if isinstance(one, Score) else Score(one) for one in found)
    return dict(zip(names, scores, strict=True))
