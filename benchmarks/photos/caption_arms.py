"""Objectives of captions that were tried against the default one; none is in the package.

The writer reads a few captions first; a text is near enough to a picture where the nearest single
word is, so that a search need not fool the image model; no word comes twice. Read next:
`captions.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor

from fuseprompt.models.image_text import ImageTextModel
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import NoRepeats
from fuseprompt.objective.terms import Fluency, ImageText
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.tasks.models import CaptionModels
from fuseprompt.tasks.settings import PREFIX, WEIGHTS

EXAMPLES: Final = (
    "a man in a blue shirt riding a bicycle down a city street.",
    "two brown dogs playing with a ball in the grass near a fence.",
    "a wooden kitchen table with a bowl of fruit and a cup on it.",
    "a group of people standing on a sandy beach next to the ocean.",
    "a large red truck parked on the side of a road in front of a building.",
)
SHORT: Final = (
    "a man riding a bicycle down a city street.",
    "two dogs playing with a ball in the grass.",
    "a bowl of fruit sitting on a kitchen table.",
    "a group of people standing on a beach.",
    "a red truck parked in front of a building.",
)
MIDDLING: Final = (
    *SHORT[:2],
    "a bowl of fruit sitting on top of a wooden table.",
    "a group of people standing on a sandy beach.",
    "a red truck parked on the side of the road.",
)


@final
@dataclass(frozen=True)
class NearEnough:
    """The loss of `ImageText`, flat where a text's cosine is `enough` times the nearest word's."""

    model: ImageTextModel
    words: Callable[[], Tensor]
    enough: float
    weight: float
    name: str = "image"
    target: str = "image"

    def encode_target(self, target: Any) -> Tensor:
        """Return the features of the pictures, then the loss that is near enough."""
        mean = ImageText(self.model).encode_target(target)
        return torch.cat([mean, 1.0 - self.enough * (self.words().cpu() @ mean).max()[None]])

    def compare(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 - cosine, or the loss that is near enough where that is more."""
        directions = self.directions(targets, outputs.shape[1])
        return self.compare_products(torch.einsum("bo,bko->bk", outputs, directions), directions)

    def directions(self, targets: Tensor, width: int) -> Tensor:
        """Return the features of the pictures, and a row that begins with the loss."""
        rest = torch.nn.functional.pad(targets[:, width:], (0, width - 1))
        return torch.stack([targets[:, :width], rest], dim=1)

    def compare_products(self, products: Tensor, directions: Tensor) -> Tensor:
        """Return 1 - cosine, or the loss that is near enough where that is more."""
        return torch.maximum(1.0 - products[:, 0], directions[:, 1, 0])


@final
@dataclass(frozen=True)
class Arm:
    """An objective of captions; as it is made, the default one.

    Attributes:
        examples: Captions that the writer reads first.
        enough: Cosine that is near enough, in multiples of the nearest word's; 0: none is.
        may_repeat: Whether a word may come twice.
    """

    examples: tuple[str, ...] = ()
    enough: float = 0.0
    weight: float = WEIGHTS["image"]
    may_repeat: bool = True

    def objective(self, models: CaptionModels) -> Objective:
        """Return the objective; the words are those of the search's own table."""

        def words() -> Tensor:
            return objective.state(AdditiveWordTable(), image).vectors

        read = "".join(f"{PREFIX} {example}\n" for example in self.examples)
        fluency = Fluency(models.lm.prompted(read) if read else models.lm, WEIGHTS["fluency"])
        image: Any = ImageText(models.image_text, self.weight)
        if self.enough:
            image = NearEnough(models.image_text, words, self.enough, self.weight)
        rules = [] if self.may_repeat else [NoRepeats()]
        objective = Objective([fluency, image], constraints=rules)
        return objective


#: The first was run on `test`, beside the default; the others on `tune` only.
ARMS: Final = {
    "near enough": Arm(EXAMPLES, 1.0, 16.0, may_repeat=False),
    "default": Arm(),
    "short examples": Arm(SHORT),
    "short examples, near enough 0.8": Arm(SHORT, 0.8, 20.0),
    "short examples, near enough 1.05": Arm(SHORT, 1.05, 16.0),
    "middling examples, near enough 1.15": Arm(MIDDLING, 1.15, 16.0, may_repeat=False),
    "near enough 0.95": Arm(EXAMPLES, 0.95, 16.0, may_repeat=False),
    "near enough 1.05, may repeat": Arm(EXAMPLES, 1.05, 16.0),
}
