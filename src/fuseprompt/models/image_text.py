"""Image-text models: a picture and a text become vectors whose cosine says how well they match.

`ImageTextModel` is the protocol. `ClipModel` wraps any Hugging Face model with `get_text_features`
and `get_image_features`; `TwoTowerModel` joins a sentence encoder and an image tower (the offline
stand-in).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from fuseprompt.errors import ModelError, reading
from fuseprompt.models.base import TextModel, replaced_embeddings
from fuseprompt.models.batching import full_precision, run_by_length
from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.models.images import open_image
from fuseprompt.models.kv_cache import TowerCache
from fuseprompt.models.pretrained import PretrainedModel, check_output
from fuseprompt.models.text_tower import TextTower
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer


@runtime_checkable
class ImageTextModel(TextModel, Protocol):
    """A text model that also sees pictures; `outputs` are L2-normalised text features."""

    def image_features(self, images: Sequence[Image.Image]) -> Float[Tensor, "n o"]:
        """Return the L2-normalised features of RGB pictures, shape (n, o)."""


@final
class TwoTowerModel:
    """A sentence encoder and an image encoder, both to L2-normalised features of one space."""

    def __init__(
        self,
        text: SentenceEncoder,
        image: Callable[[Sequence[Image.Image]], Float[Tensor, "n o"]],
        *,
        name: str = "",
    ) -> None:
        self._text = text
        self._image = image
        self.name = name
        self.tokenizer: Tokenizer = text.tokenizer
        self.max_length: int = text.max_length
        self.notes: tuple[str, ...] = text.notes

    @property
    def dtype(self) -> torch.dtype:
        """That of the text tower; pictures are read in fp32."""
        return self._text.dtype

    def in_fp32(self) -> "TwoTowerModel":
        """Return the model in fp32, or itself where it cannot be loaded so."""
        text = self._text.in_fp32()
        return self if text is self._text else TwoTowerModel(text, self._image, name=self.name)

    @property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The text tower's embedding layer applied to every id, shape (v, d)."""
        return self._text.vocabulary

    def outputs(
        self, token_ids: PaddedIds, *, embeds: Float[Tensor, "b s d"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Return the L2-normalised text features of each row of ids, shape (b, o)."""
        return self._text.outputs(token_ids, embeds=embeds)

    def image_features(self, images: Sequence[Image.Image]) -> Float[Tensor, "n o"]:
        """Return the L2-normalised features of RGB pictures, shape (n, o)."""
        with full_precision():
            return self._image(images)


@final
class ClipModel(PretrainedModel):
    """A Hugging Face image-text model (CLIP and its relatives)."""

    # A family that reads its padding (SigLIP pools the last position, whatever is there) always
    # gets texts filled up to `padded_to` tokens, as its own processor fills them; others see texts
    # at their true length. Which kind a model is, is tried out and not looked up.

    more_files: ClassVar[str] = "preprocessor_config.json"

    def __init__(
        self, module: Any, tokenizer: Tokenizer, processor: Any, *, name: str = ""
    ) -> None:
        for method in ("get_text_features", "get_image_features"):
            if not hasattr(module, method):
                raise ModelError(
                    f"{name}: {type(module).__name__} has no {method}; "
                    "expected an image-text model like CLIP."
                )
        text_side = getattr(module, "text_model", module)
        self._processor = processor
        super().__init__(module, tokenizer, name=name, text_side=text_side)
        self.padded_to: int | None = self.max_length if self._reads_padding() else None
        if self.padded_to is not None:
            self.notes += (
                f"It reads padding, so every text is padded to {self.padded_to} tokens.",
            )
        self._check_end()
        self._tower = self._find_tower()
        if self._tower is None:
            self.notes += ("Its text tower cannot go on from a prefix: texts are computed whole.",)

    @classmethod
    def _read_more(
        cls, path: str | Path, tokenizer: Tokenizer, *, local_only: bool, name: str
    ) -> dict[str, Any]:
        # The lazy name of the package asks for torchvision in some releases; the class does not.
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        del tokenizer
        loaded = AutoImageProcessor.from_pretrained(str(path), local_files_only=local_only)
        for key, value in loaded.to_dict().items():
            expected = ""
            if key == "image_std" and isinstance(value, list | tuple) and not min(value) > 0:
                expected = "numbers above 0"
            if key.startswith("do_") and not (value is None or isinstance(value, bool)):
                expected = "true or false"
            if isinstance(value, Mapping) and any(isinstance(v, bool) for v in value.values()):
                expected = "numbers in it"  # True would count as a size of one pixel.
            if expected:
                raise ModelError(
                    f"{name}: {key} is {value} in its preprocessor_config.json, expected "
                    f"{expected}. Copy the folder again."
                )
        return {"processor": loaded}

    def outputs(
        self, token_ids: PaddedIds, *, embeds: Float[Tensor, "b s d"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Return the L2-normalised text features of each row of ids, shape (b, o)."""
        if self.padded_to is None:
            return super().outputs(token_ids, embeds=embeds)
        compute, size, length = self._compute_padded, self.pass_size, self.padded_to
        return run_by_length(compute, token_ids, size=size, embeds=embeds, padded_to=length)

    @torch.no_grad()
    def image_features(self, images: Sequence[Image.Image]) -> Float[Tensor, "n o"]:
        """Return the L2-normalised features of pictures, shape (n, o).

        Raises:
            ModelError: If they are not finite.
        """
        return self._see(images)

    def _see(self, images: Sequence[Image.Image]) -> Float[Tensor, "n o"]:
        # SigLIP 2 wants its pictures' shapes with the pixels: pass on all that the processor gives.
        pictures = [open_image(image) for image in images]
        batch = self._processor(images=pictures, return_tensors="pt")
        inputs = {
            key: value.to(self.device, self.dtype if value.is_floating_point() else None)
            for key, value in batch.items()
        }
        with full_precision():
            features = _vector(self.module.get_image_features(**inputs)).float()
        check_output(features, name=f"{self.name} (image side)")
        return torch.nn.functional.normalize(features, dim=-1)

    def _try_out(self) -> Sequence[Tensor]:
        text = super()._try_out()
        with reading(self.name, self.more_files):
            return [*text, self._see([Image.new("RGB", (72, 56), "white")])]

    def start_cache(self) -> TowerCache | None:
        """Return an empty cache for texts that begin alike; `None` if the tower is not causal."""
        return None if self._tower is None else TowerCache(self._tower, self.outputs)

    def _find_tower(self) -> TextTower | None:
        """Return the text tower if its passes can start after a prefix, which is tried out."""
        if self.padded_to is not None:
            return None
        tower = TextTower(self._compute, self.text_side.config, self.pass_size)
        return tower if tower.can_continue(self._sample(), self.tolerance) else None

    def _compute(self, ids: Int[Tensor, "b s"], **masked: Any) -> Float[Tensor, "b o"]:
        features = _vector(self.module.get_text_features(input_ids=ids, **masked)).float()
        return torch.nn.functional.normalize(features, dim=-1)

    def _compute_padded(
        self, rows: PaddedIds, embeds: Float[Tensor, "b s d"] | None
    ) -> Float[Tensor, "b o"]:
        ids = rows.ids
        padding, room = self.tokenizer.padding, (self.padded_to or 0) - ids.shape[1]
        assert padding is not None, "found by padding a text"
        sides = (room, 0) if padding.on_left else (0, room)
        full = torch.nn.functional.pad(ids, sides, value=padding.token_id)
        masked: dict[str, Tensor] = {}
        if padding.has_mask:
            masked["attention_mask"] = torch.nn.functional.pad(torch.ones_like(ids), sides)
        if embeds is None:
            with torch.no_grad():
                return self._compute(full, **masked)
        fill = self.vocabulary[padding.token_id].expand(len(ids), room, -1)
        parts = (fill, embeds) if padding.on_left else (embeds, fill)
        with replaced_embeddings(self.text_side, torch.cat(parts, dim=1)):
            return self._compute(full, **masked)

    @torch.no_grad()
    def _check_end(self) -> None:
        """Refuse a text tower that takes a token of the text for its end: the rest goes unread.

        CLIP pools at the first `eos_token_id`, or where that is 2 at the largest id.

        Raises:
            ModelError: If two texts that differ in their last word have equal features.
        """
        tokenizer, config = self.tokenizer, self.text_side.config
        known = [getattr(config, f"{kind}_token_id", None) for kind in ("bos", "eos", "pad")]
        ids = set(tokenizer.ids_by_token.values()) - tokenizer.special_ids
        words = [tokenizer.encode(f"a {word}")[-1:] for word in ("cat", "dog")]
        for token in (None, max(ids), *(i for i in known if i in ids)):
            before = [] if token is None else [token]
            rows = [tokenizer.add_special_tokens([*before, *word]) for word in words]
            first, second = self.outputs(PaddedIds.from_lists(rows))
            if words[0] == words[1] or bool((first - second).abs().max() > 1e-6):
                continue
            after = "" if token is None else f" after {tokenizer.token_texts[token].strip()!r}"
            end = tokenizer.suffix_ids[:1]
            raise ModelError(
                f"{self.name}: its text tower does not read the text{after}, which it takes for "
                f"its end (eos_token_id is {known[1]} in its config.json, the tokenizer's end is "
                f"{list(end)}). Set eos_token_id of text_config to that, or give the tokenizer "
                "that belongs to it."
            )

    @torch.no_grad()
    def _reads_padding(self) -> bool:
        """Return whether one masked padding token after a text changes its features."""
        padding = self.tokenizer.padding
        if padding is None:
            return False
        row = self.tokenizer.add_special_tokens(self.tokenizer.encode("a cat"))
        ids = torch.tensor([[*row, padding.token_id]], device=self.device)
        mask = torch.ones_like(ids)
        mask[:, -1] = 0
        cosine = (self._compute(ids[:, :-1]) * self._compute(ids, attention_mask=mask)).sum()
        return float(cosine) < 1.0 - self.tolerance


def _vector(output: Any) -> Tensor:
    """Return the projected vector: bare in transformers 4, `pooler_output` of an object in 5."""
    vector: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return vector
