"""Loading of the models that a caption is made with; their ids are settings."""

from dataclasses import dataclass
from typing import TypeVar, final

import torch

from fuseprompt.errors import ModelError
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier
from fuseprompt.models.hub import load
from fuseprompt.models.image_text import ImageTextModel
from fuseprompt.tasks.settings import ModelIds, model_ids

_M = TypeVar("_M")


@final
@dataclass(frozen=True, eq=False)
class CaptionModels:
    """Loaded models of a caption; `lm` is the primary, which writes."""

    lm: CausalLM
    image_text: ImageTextModel
    sentiment: Classifier | None = None


def load_models(
    ids: ModelIds | str,
    *,
    with_sentiment: bool = False,
    device: str | torch.device = "auto",
    local_only: bool = False,
) -> CaptionModels:
    """Return the models of ids, or of what `model_ids` takes; see `load`."""
    ids = model_ids(ids) if isinstance(ids, str) else ids

    def load_one(model_id: str, kind: type[_M], wanted: str) -> _M:
        model = load(model_id, device=device, local_only=local_only)
        if not isinstance(model, kind):
            raise ModelError(f"{model_id}: expected {wanted}, got a {type(model).__name__}.")
        return model

    lm = load_one(ids.lm, CausalLM, "a causal language model")
    image_text: ImageTextModel = load_one(ids.image_text, ImageTextModel, "an image-text model")  # type: ignore[type-abstract]
    if not with_sentiment:
        return CaptionModels(lm, image_text)
    sentiment = load_one(ids.sentiment, Classifier, "a sequence classifier")
    return CaptionModels(lm, image_text, sentiment)
