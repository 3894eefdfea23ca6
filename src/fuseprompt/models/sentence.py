"""Sentence encoders: a BERT-like body, pooled and normalised.

The pooling is read from the folder's sentence-transformers files; a plain body without them is
mean-pooled. Not here: images (`image_text`) and class labels (`classifier`).
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import replaced_embeddings, vocabulary_of
from fuseprompt.models.encoder import run_by_length
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer


@final
class SentenceEncoder:
    """Text to one L2-normalised vector.

    Args:
        module: A Hugging Face encoder that returns `last_hidden_state`.
        tokenizer: Its tokenizer.
        pools_first: Take the first position (CLS) instead of the mean over all positions.
        name: The id or folder it came from.
    """

    def __init__(
        self, module: Any, tokenizer: Tokenizer, *, pools_first: bool = False, name: str = ""
    ) -> None:
        self._module = module.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.pools_first = pools_first
        self.name = name
        limits = (tokenizer.max_length, getattr(module.config, "max_position_embeddings", None))
        self.max_length: int = min(n for n in (*limits, 512) if n is not None)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        local_only: bool = True,
        device: torch.device | None = None,
        name: str = "",
    ) -> "SentenceEncoder":
        """Load a folder (or Hub id, when `local_only` is off) in fp32."""
        from transformers import AutoModel

        module = AutoModel.from_pretrained(
            str(path), local_files_only=local_only, dtype=torch.float32
        )
        tokenizer = Tokenizer.from_pretrained(path, local_only=local_only)
        pooling = Path(path) / "1_Pooling" / "config.json"
        first = pooling.is_file() and bool(
            json.loads(pooling.read_text()).get("pooling_mode_cls_token", False)
        )
        return cls(module.to(device), tokenizer, pools_first=first, name=name or str(path))

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
        """Return the normalised sentence vector of each row of framed ids, shape (b, o)."""
        return run_by_length(self._forward, token_ids, embeds=embeds, device=self.device)

    def encode(self, texts: list[str]) -> Float[Tensor, "b o"]:
        """Return the normalised vectors of texts, shape (b, o)."""
        rows = [self.tokenizer.frame(ids) for ids in self.tokenizer.encode_batch(texts)]
        with torch.no_grad():
            return self.outputs(PaddedIds.from_lists(rows))

    def _forward(
        self, ids: Int[Tensor, "b s"], embeds: Float[Tensor, "b s d"] | None
    ) -> Float[Tensor, "b o"]:
        if embeds is None:
            with torch.no_grad():
                hidden = self._module(input_ids=ids).last_hidden_state
        else:
            with replaced_embeddings(self._module, embeds):
                hidden = self._module(input_ids=ids).last_hidden_state
        pooled = hidden[:, 0] if self.pools_first else hidden.mean(dim=1)
        return torch.nn.functional.normalize(pooled, dim=-1)
