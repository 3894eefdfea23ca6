"""Image-text models: a picture and a text become vectors whose cosine says how well they match.

`ImageTextModel` is the protocol. `ClipModel` wraps any Hugging Face model with `get_text_features`
and `get_image_features`; `TwoTowerModel` joins a sentence encoder and an image tower (the offline
stand-in). Both score texts at their true length. Read next: `fuseprompt.objective.terms`.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from fuseprompt.errors import ModelError
from fuseprompt.models.base import TextModel, replaced_embeddings, vocabulary_of
from fuseprompt.models.encoder import run_by_length
from fuseprompt.models.sentence import SentenceEncoder
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer


@runtime_checkable
class ImageTextModel(TextModel, Protocol):
    """A text model that also sees pictures; `outputs` are L2-normalised text features."""

    def image_features(self, images: Sequence[Image.Image]) -> Float[Tensor, "n o"]:
        """Return the L2-normalised features of RGB pictures, shape (n, o)."""
        ...


@runtime_checkable
class ImageEncoder(Protocol):
    """The picture's half of a two-tower model."""

    def image_features(self, images: Sequence[Image.Image]) -> Float[Tensor, "n o"]:
        """Return the L2-normalised features of RGB pictures, shape (n, o)."""
        ...


@final
class TwoTowerModel:
    """A sentence encoder and an image encoder that share one space.

    Args:
        text: Text tower.
        image: Image tower; its features have the width of the text tower's.
        name: What error messages call the model.
    """

    def __init__(self, text: SentenceEncoder, image: ImageEncoder, *, name: str = "") -> None:
        self._text = text
        self._image = image
        self.name = name
        self.tokenizer: Tokenizer = text.tokenizer
        self.max_length: int = text.max_length

    @property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The text tower's embedding layer applied to every id, shape (v, d)."""
        return self._text.vocabulary

    def outputs(
        self, token_ids: PaddedIds, *, embeds: Float[Tensor, "b s d"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Return the L2-normalised text features of each row of framed ids, shape (b, o)."""
        return self._text.outputs(token_ids, embeds=embeds)

    def image_features(self, images: Sequence[Image.Image]) -> Float[Tensor, "n o"]:
        """Return the L2-normalised features of RGB pictures, shape (n, o)."""
        return self._image.image_features(images)


@final
class ClipModel:
    """A Hugging Face image-text model (CLIP and its relatives).

    Args:
        module: The model.
        tokenizer: Its tokenizer.
        processor: Its image processor.
        name: The id or folder it came from.

    Raises:
        ModelError: If the model has no text or no image side.
    """

    def __init__(
        self, module: Any, tokenizer: Tokenizer, processor: Any, *, name: str = ""
    ) -> None:
        for method in ("get_text_features", "get_image_features"):
            if not hasattr(module, method):
                raise ModelError(
                    f"{name}: {type(module).__name__} has no {method}; "
                    "expected an image-text model like CLIP."
                )
        self._module = module.eval().requires_grad_(False)
        self._text_module = getattr(module, "text_model", module)
        self._processor = processor
        self.tokenizer = tokenizer
        self.name = name
        text_config = getattr(module.config, "text_config", module.config)
        limits = (tokenizer.max_length, getattr(text_config, "max_position_embeddings", None))
        self.max_length: int = min(n for n in (*limits, 512) if n is not None)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        local_only: bool = True,
        device: torch.device | None = None,
        name: str = "",
    ) -> "ClipModel":
        """Load a folder (or Hub id, when `local_only` is off) in fp32."""
        from transformers import AutoModel

        # The lazy name of the package asks for torchvision in some releases; the class does not.
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        module = AutoModel.from_pretrained(
            str(path), local_files_only=local_only, dtype=torch.float32
        )
        processor = AutoImageProcessor.from_pretrained(str(path), local_files_only=local_only)
        tokenizer = Tokenizer.from_pretrained(path, local_only=local_only)
        return cls(module.to(device), tokenizer, processor, name=name or str(path))

    @cached_property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The text side's embedding layer applied to every id, shape (v, d)."""
        return vocabulary_of(self._text_module)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self._module.device
        return device

    def outputs(
        self, token_ids: PaddedIds, *, embeds: Float[Tensor, "b s d"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Return the L2-normalised text features of each row of framed ids, shape (b, o)."""
        return run_by_length(self._forward, token_ids, embeds=embeds, device=self.device)

    @torch.no_grad()
    def image_features(self, images: Sequence[Image.Image]) -> Float[Tensor, "n o"]:
        """Return the L2-normalised features of RGB pictures, shape (n, o)."""
        batch = self._processor(images=list(images), return_tensors="pt")
        pixels = batch["pixel_values"].to(self.device)
        features = _vector(self._module.get_image_features(pixel_values=pixels))
        return torch.nn.functional.normalize(features, dim=-1)

    def _forward(
        self, ids: Int[Tensor, "b s"], embeds: Float[Tensor, "b s d"] | None
    ) -> Float[Tensor, "b o"]:
        if embeds is None:
            with torch.no_grad():
                features = _vector(self._module.get_text_features(input_ids=ids))
        else:
            with replaced_embeddings(self._text_module, embeds):
                features = _vector(self._module.get_text_features(input_ids=ids))
        return torch.nn.functional.normalize(features, dim=-1)


def _vector(output: Any) -> Tensor:
    """Return the projected vector: bare in transformers 4, `pooler_output` of an object in 5."""
    vector: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return vector
