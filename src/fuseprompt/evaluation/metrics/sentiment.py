"""Whether captions have the tone that was asked for, by a judge with a name.

Judges with two and with three classes are not comparable: a judge without "neutral" calls most
plain captions positive. So a score comes with its judge, the share it calls neutral (which counts
as wrong) and its score on the captions of people, the ceiling. Read next:
`fuseprompt.evaluation.metrics.language`.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, final

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics.outputs import outputs_of
from fuseprompt.models.classifier import Classifier

#: The tones, and what classifiers call them besides.
_TONES: Final = {
    "positive": "positive",
    "pos": "positive",
    "negative": "negative",
    "neg": "negative",
    "neutral": "neutral",
    "neu": "neutral",
}

#: From here on VADER's compound score is a tone, as its authors say.
_VADER_TONE: Final = 0.05


class Judge(Protocol):
    """Whoever says what tone a text has."""

    @property
    def name(self) -> str:
        """Id of the model, or name of the lexicon."""
        ...

    def tones(self, texts: Sequence[str]) -> list[str]:
        """Return "positive", "negative" or "neutral" for each text."""
        ...


@final
class ClassifierJudge:
    """A sequence classifier: the tone of its most probable label.

    Args:
        model: A classifier whose labels are tones.

    Raises:
        MetricError: If they are not.
    """

    def __init__(self, model: Classifier) -> None:
        self.name = model.name
        self._model = model
        known = [_TONES.get(label.lower(), "") for label in model.labels]
        if not {"positive", "negative"} <= set(known) or "" in known:
            raise MetricError(
                f"{model.name}: its labels are {', '.join(model.labels)}; expected positive and "
                "negative, and neutral or not. Name them in id2label of its config.json."
            )
        self._tones = known

    def tones(self, texts: Sequence[str]) -> list[str]:
        """Return the tone of each text."""
        best = outputs_of(self._model, texts).argmax(dim=-1).tolist()
        return [self._tones[label] for label in best]


@final
class Vader:
    """The lexicon of the package vaderSentiment.

    Its authors' texts are part of what the offline classifier was trained on: captions that were
    optimised with that one are judged by a relative.

    Raises:
        MetricError: If the package is not installed.
    """

    name: Final = "vader"

    def __init__(self) -> None:
        try:
            from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
        except ImportError:
            raise MetricError(
                "The judge vader needs a package: pip install vaderSentiment."
            ) from None
        self._lexicon: Any = SentimentIntensityAnalyzer()

    def tones(self, texts: Sequence[str]) -> list[str]:
        """Return the tone of each text: that of its compound score, neutral between +-0.05."""
        scores = [float(self._lexicon.polarity_scores(text)["compound"]) for text in texts]
        return [_tone(score, _VADER_TONE) for score in scores]


@final
class Afinn:
    """The lexicon of the package afinn; a text without a word of it is neutral.

    Raises:
        MetricError: If the package is not installed.
    """

    name: Final = "afinn"

    def __init__(self) -> None:
        try:
            from afinn import Afinn as Lexicon
        except ImportError:
            raise MetricError("The judge afinn needs a package: pip install afinn.") from None
        self._lexicon: Any = Lexicon()

    def tones(self, texts: Sequence[str]) -> list[str]:
        """Return the tone of each text: the sign of the sum of its words."""
        return [_tone(float(self._lexicon.score(text)), 0.0) for text in texts]


def accuracy(tones: Sequence[str], wanted: str) -> float:
    """Return the share of tones that are as wanted, from 0 to 1; neutral is not."""
    return sum(tone == wanted for tone in tones) / len(tones)


def _tone(score: float, threshold: float) -> str:
    if abs(score) < threshold or score == 0.0:
        return "neutral"
    return "positive" if score > 0 else "negative"
