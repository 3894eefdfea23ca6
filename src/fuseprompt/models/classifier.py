"""Sequence classifiers: text to the logits of named labels, as the family's pipeline gives them.

Not here: the loss of a wanted label (`fuseprompt.objective.terms`). Read next:
`fuseprompt.models.image_text`.
"""

from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import ModelError
from fuseprompt.models.pretrained import Pretrained, load_pretrained
from fuseprompt.models.selftest import repeated_labels
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
        ModelError: If the model has fewer than two labels, or two of the same name, or cannot be
            used (`Pretrained`).
    """

    def __init__(self, module: Any, tokenizer: Tokenizer, *, name: str = "") -> None:
        labels: dict[int, str] = {int(i): str(n) for i, n in module.config.id2label.items()}
        if len(labels) < 2:
            raise ModelError(
                f"{name}: a classifier needs at least two labels, got {sorted(labels.values())}. "
                "A model with one output is a regressor: write a term for it "
                "(docs/tutorial_custom_term.py shows how)."
            )
        self.labels: tuple[str, ...] = tuple(labels[i] for i in sorted(labels))
        if repeated := repeated_labels(self.labels):
            raise ModelError(
                f"{name}: more than one class is called {repeated}, so a label has no one class. "
                "Rename them in id2label of its config.json."
            )
        self.name = name
        self.tokenizer = tokenizer
        self._held = Pretrained(module, tokenizer, name=name)
        self._held.try_out(self._compute)
        self.max_length: int = self._held.max_length
        self.notes: tuple[str, ...] = self._held.notes

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
        from transformers import AutoModelForSequenceClassification as Auto

        module, tokenizer = load_pretrained(path, Auto, local_only=local_only, device=device)
        return cls(module, tokenizer, name=name or str(path))

    @property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The embedding layer applied to every id, shape (v, d)."""
        return self._held.vocabulary

    def outputs(
        self, token_ids: PaddedIds, *, embeds: Float[Tensor, "b s d"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Return the logits of each row of framed ids, shape (b, labels)."""
        return self._held.outputs(self._compute, token_ids, embeds=embeds)

    def _compute(self, ids: Int[Tensor, "b s"]) -> Float[Tensor, "b o"]:
        logits: Tensor = self._held.module(input_ids=ids).logits
        return logits
