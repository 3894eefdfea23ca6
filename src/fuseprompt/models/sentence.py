"""Sentence encoders: a BERT-like body, pooled and normalised.

The pooling is read from the folder's sentence-transformers files; a plain body without them is
mean-pooled. Not here: images (`image_text`) and class labels (`classifier`).
"""

import json
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.pretrained import Pretrained, load_pretrained
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
        self.name = name
        self.tokenizer = tokenizer
        self.pools_first = pools_first
        self._held = Pretrained(module, tokenizer, name=name)
        self.max_length: int = self._held.max_length

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

        module, tokenizer = load_pretrained(path, AutoModel, local_only=local_only, device=device)
        pooling = Path(path) / "1_Pooling" / "config.json"
        first = pooling.is_file() and bool(
            json.loads(pooling.read_text()).get("pooling_mode_cls_token", False)
        )
        return cls(module, tokenizer, pools_first=first, name=name or str(path))

    @property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The embedding layer applied to every id, shape (v, d)."""
        return self._held.vocabulary

    def outputs(
        self, token_ids: PaddedIds, *, embeds: Float[Tensor, "b s d"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Return the normalised sentence vector of each row of framed ids, shape (b, o)."""
        return self._held.outputs(self._compute, token_ids, embeds=embeds)

    def encode(self, texts: list[str]) -> Float[Tensor, "b o"]:
        """Return the normalised vectors of texts, shape (b, o)."""
        rows = [self.tokenizer.frame(ids) for ids in self.tokenizer.encode_batch(texts)]
        with torch.no_grad():
            return self.outputs(PaddedIds.from_lists(rows))

    def _compute(self, ids: Int[Tensor, "b s"]) -> Float[Tensor, "b o"]:
        hidden = self._held.module(input_ids=ids).last_hidden_state
        pooled = hidden[:, 0] if self.pools_first else hidden.mean(dim=1)
        return torch.nn.functional.normalize(pooled, dim=-1)
