"""Which models a caption is made with: the offline set, the paper's, or a file of the user's.

It loads models but knows nothing of a search. Read next: `fuseprompt.tasks.caption`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, final

import torch

from fuseprompt.errors import ModelError
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.classifier import Classifier
from fuseprompt.models.hub import load
from fuseprompt.models.image_text import ImageTextModel

_M = TypeVar("_M")


@final
@dataclass(frozen=True)
class ModelIds:
    """Ids of the models of a caption.

    Attributes:
        lm: Causal language model.
        image_text: Image-text model.
        sentiment: Classifier, loaded only where a sentiment is asked for.
    """

    lm: str
    image_text: str
    sentiment: str


#: Default always (docs/decisions.md): real weights that ship in packages.
OFFLINE: Final = ModelIds("offline:lm", "offline:image-text", "offline:sentiment")

#: Williams & Kolter (2024), section 4.2.
PAPER: Final = ModelIds(
    "gpt2-medium",
    "openai/clip-vit-base-patch32",
    "cardiffnlp/twitter-roberta-base-sentiment-latest",
)


@final
@dataclass(frozen=True, eq=False)
class CaptionModels:
    """Loaded models of a caption.

    Attributes:
        lm: The primary, which writes.
        image_text: Judges the match with the picture.
        sentiment: Judges the tone, or `None`.
    """

    lm: CausalLM
    image_text: ImageTextModel
    sentiment: Classifier | None = None


def model_ids(choice: str) -> ModelIds:
    """Return the ids behind "offline", "paper" or the name of a YAML file.

    Args:
        choice: One of the two words, or a file with the keys lm, image_text and sentiment (which
            may be left out); each value is what `load` takes.

    Returns:
        The ids.

    Raises:
        ModelError: If the choice is none of these, or the file lacks a key or has an unknown one.
    """
    if choice == "offline":
        return OFFLINE
    if choice == "paper":
        return PAPER
    file = Path(choice)
    if not file.is_file():
        raise ModelError(
            f"models {choice!r}: expected offline, paper, or a YAML file; there is no such file."
        )
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ModelError(f"{choice}: not a YAML file ({str(error).splitlines()[0]}).") from None
    known = set(ModelIds.__dataclass_fields__)
    keys = {str(key) for key in read} if isinstance(read, dict) else set()
    if not {"lm", "image_text"} <= keys <= known:
        raise ModelError(
            f"{choice}: expected the keys {sorted(known)} (sentiment may be left out), got "
            f"{sorted(keys)}."
        )
    return ModelIds(**{"sentiment": OFFLINE.sentiment, **{k: str(v) for k, v in read.items()}})


def load_models(
    ids: ModelIds,
    *,
    with_sentiment: bool = False,
    device: str | torch.device = "auto",
    local_only: bool = False,
) -> CaptionModels:
    """Load the models of a caption.

    Args:
        ids: What `load` takes, for each model.
        with_sentiment: Whether to load the classifier too.
        device: "auto" (a GPU if there is one), or a torch device.
        local_only: Never ask the Hub, only its local cache.

    Returns:
        The models.

    Raises:
        ModelError: If an id stands for a model of another kind.
    """

    def load_one(model_id: str, kind: type[_M], wanted: str) -> _M:
        model = load(model_id, device=device, local_only=local_only)
        if not isinstance(model, kind):
            raise ModelError(f"{model_id}: expected {wanted}, got a {type(model).__name__}.")
        return model

    lm = load_one(ids.lm, CausalLM, "a causal language model")
    image_text: ImageTextModel = load_one(ids.image_text, ImageTextModel, "an image-text model")  # type: ignore[type-abstract]
    sentiment = (
        load_one(ids.sentiment, Classifier, "a sequence classifier") if with_sentiment else None
    )
    return CaptionModels(lm, image_text, sentiment)
