"""The terms that compare a text with a target: a picture, a label, another text.

A term is a frozen dataclass with `name`, `weight`, `target`, `model`, `read_target` and `compare`
(`fuseprompt.objective.objective.Term`); a user adds one in one file. Read next:
`fuseprompt.search.engine`.
"""

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from fuseprompt.errors import ProblemError
from fuseprompt.models.classifier import Classifier
from fuseprompt.models.image_text import ImageTextModel
from fuseprompt.models.images import open_image
from fuseprompt.models.sentence import SentenceEncoder


@final
@dataclass(frozen=True)
class ImageText:
    """One minus the cosine of text and picture, range [0, 2], no unit.

    Attributes:
        model: Image-text model.
        weight: Factor in the total loss.
        name: Name in results.
        target: Name of the target: a path, or a Pillow image.
    """

    model: ImageTextModel
    weight: float = 1.0
    name: str = "image"
    target: str = "image"

    def read_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the normalised features of the picture, shape (o,)."""
        image = target.convert("RGB") if isinstance(target, Image.Image) else open_image(target)
        return self.model.image_features([image])[0].cpu()

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return 1 - cosine, shape (b,)."""
        return 1.0 - (outputs * targets).sum(dim=-1)


@final
@dataclass(frozen=True)
class TextSimilarity:
    """One minus the cosine of the text and a target text, range [0, 2], no unit.

    Attributes:
        model: Sentence encoder.
        weight: Factor in the total loss.
        name: Name in results.
        target: Name of the target: a text.
    """

    model: SentenceEncoder
    weight: float = 1.0
    name: str = "similarity"
    target: str = "text"

    def read_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the normalised features of the text, shape (o,)."""
        return self.model.encode([str(target)])[0].cpu()

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return 1 - cosine, shape (b,)."""
        return 1.0 - (outputs * targets).sum(dim=-1)


@final
@dataclass(frozen=True)
class Label:
    """Cross-entropy to a class given by name, in nats, range [0, inf).

    Attributes:
        model: Classifier.
        weight: Factor in the total loss.
        name: Name in results.
        target: Name of the target: one of the classifier's labels, in any case.
    """

    model: Classifier
    weight: float = 1.0
    name: str = "sentiment"
    target: str = "sentiment"

    def read_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the class as a one-hot vector, shape (labels,).

        Raises:
            ProblemError: If the classifier has no such label.
        """
        names = [label.lower() for label in self.model.labels]
        if str(target).lower() not in names:
            raise ProblemError(
                f"{self.model.name}: no label {target!r}; its labels are {list(self.model.labels)}."
            )
        return torch.nn.functional.one_hot(
            torch.tensor(names.index(str(target).lower())), len(names)
        ).float()

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return the cross-entropy, shape (b,)."""
        return -(torch.log_softmax(outputs, dim=-1) * targets).sum(dim=-1)
