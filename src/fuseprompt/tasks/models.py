"""Which models a caption is made with: the offline set, the paper's, or a file of the user's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch

from fuseprompt.errors import ModelError
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.classifier import Classifier
from fuseprompt.models.hub import Model, load
from fuseprompt.models.image_text import ImageTextModel


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
    "gpt2-medium", "openai/clip-vit-base-patch32", "cardiffnlp/twitter-roberta-base-sentiment-latest"
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
    """Return the ids behind "offline", "paper" or a YAML file with the keys lm, image_text, sentiment.

    Raises:
        ModelError: If the choice is none of these, or the file lacks a key or has an unknown one.
    """
    if choice == "offline":
        return OFFLINE
    if choice == "paper":
        return PAPER
    file = Path(choice)
    if not file.is_file():
        raise ModelError(f"models {choice!r}: expected offline, paper, or a YAML file; there is no such file.")
    import yaml

    try:
        read = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ModelError(f"{choice}: not a YAML file ({str(error).splitlines()[0]}).") from None
    known = set(ModelIds.__dataclass_fields__)
    keys = set(read) if isinstance(read, dict) else set()
    if not {"lm", "image_text"} <= keys <= known:
        raise ModelError(f"{choice}: expected the keys {sorted(known)} (sentiment may be left out), got {sorted(keys)}.")
    return ModelIds(**{"sentiment": OFFLINE.sentiment, **{k: str(v) for k, v in read.items()}})


def load_models(
    ids: ModelIds, *, with_sentiment: bool = False, device: str | torch.device = "auto", local_only: bool = False
) -> CaptionModels:
    """Load the models of a caption.

    Raises:
        ModelError: If an id stands for a model of another kind.
    """
    lm, image_text = (load(i, device=device, local_only=local_only) for i in (ids.lm, ids.image_text))
    sentiment = load(ids.sentiment, device=device, local_only=local_only) if with_sentiment else None
    if not isinstance(lm, CausalLM):
        raise _wrong_kind(ids.lm, lm, "a causal language model")
    if not isinstance(image_text, ImageTextModel):
        raise _wrong_kind(ids.image_text, image_text, "an image-text model")
    if sentiment is not None and not isinstance(sentiment, Classifier):
        raise _wrong_kind(ids.sentiment, sentiment, "a sequence classifier")
    return CaptionModels(lm, image_text, sentiment)


def _wrong_kind(model_id: str, model: Model, wanted: str) -> ModelError:
    return ModelError(f"{model_id}: expected {wanted}, got a {type(model).__name__}.")
