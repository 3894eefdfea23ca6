"""Sequence classifiers: text to the logits of named labels, as the family's pipeline gives them.

Not here: the loss of a wanted label (`fuseprompt.objective.terms`).
"""

from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import ModelError
from fuseprompt.models.base import replaced_embeddings, vocabulary_of
from fuseprompt.models.encoder import run_by_length
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer


@final
class Classifier:
    """Text to logits over labels.

    Args:
        module: A Hugging Face model for sequence classification.
        tokenizer: Its tokenizer.
        name: The id or folder it came from.

    Raises:
        ModelError: If the model has fewer than two labels.
    """

    def __init__(self, module: Any, tokenizer: Tokenizer, *, name: str = "") -> None:
        self._module = module.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        labels: dict[int, str] = {int(i): str(n) for i, n in module.config.id2label.items()}
        if len(labels) < 2:
            raise ModelError(
                f"{name}: a classifier needs at least two labels, got {sorted(labels.values())}. "
                "A model with one output is a regressor: write a term for it "
                "(docs/decisions.md, terms)."
            )
        self.labels: tuple[str, ...] = tuple(labels[i] for i in sorted(labels))
        positions = getattr(module.config, "max_position_embeddings", None)
        # RoBERTa's positions begin after the padding id, so two of its rows are never a position of
        # a text.
        if positions is not None and "roberta" in str(module.config.model_type):
            positions -= int(module.config.pad_token_id) + 1
        self.max_length: int = min(
            n for n in (tokenizer.max_length, positions, 512) if n is not None
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        local_only: bool = True,
        device: torch.device | None = None,
        name: str = "",
    ) -> "Classifier":
        """Load a folder (or Hub id, when `local_only` is off) in fp32."""
        from transformers import AutoModelForSequenceClassification

        module = AutoModelForSequenceClassification.from_pretrained(
            str(path), local_files_only=local_only, dtype=torch.float32
        )
        tokenizer = Tokenizer.from_pretrained(path, local_only=local_only)
        return cls(module.to(device), tokenizer, name=name or str(path))

    @cached_property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The embedding layer applied to every id, shape (v, d)."""
        return vocabulary_of(self._module)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self._module.device
        return device

    def outputs(
        self, token_ids: PaddedIds, *, embeds: Float[Tensor, "b s d"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Return the logits of each row of framed ids, shape (b, labels)."""
        return run_by_length(self._forward, token_ids, embeds=embeds, device=self.device)

    def _forward(
        self, ids: Int[Tensor, "b s"], embeds: Float[Tensor, "b s d"] | None
    ) -> Float[Tensor, "b o"]:
        if embeds is None:
            with torch.no_grad():
                return self._module(input_ids=ids).logits  # type: ignore[no-any-return]
        with replaced_embeddings(self._module, embeds):
            return self._module(input_ids=ids).logits  # type: ignore[no-any-return]
