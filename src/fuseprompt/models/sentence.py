"""Sentence encoders: a BERT-like body, pooled and normalised.

The pooling is read from the folder's sentence-transformers files; a plain body without them is
mean-pooled. What cannot be done as the folder says is refused. Not here: images (`image_text`) and
class labels (`classifier`).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import ModelError
from fuseprompt.models.pretrained import Pretrained, load_pretrained
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer


@final
@dataclass(frozen=True)
class SentenceSettings:
    """What the sentence-transformers files of a folder say.

    Attributes:
        pools_first: Take the first position instead of the mean over all.
        max_length: Longest text in tokens, or `None`.
    """

    pools_first: bool = False
    max_length: int | None = None


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
    ) -> "SentenceEncoder":
        """Load a folder (or Hub id, when `local_only` is off) in fp32.

        Args:
            path: The folder or id; files of sentence-transformers in it are heeded.
            local_only: Never ask the Hub.
            device: Where the weights go.
            name: What error messages call the model.

        Returns:
            The encoder.
        """
        from transformers import AutoModel

        module, tokenizer = load_pretrained(path, AutoModel, local_only=local_only, device=device)
        name = name or str(path)
        settings = read_settings(path, local_only=local_only, name=name)
        if settings.max_length is not None:
            limit = tokenizer.max_length
            tokenizer.max_length = min(settings.max_length, limit or settings.max_length)
        return cls(module, tokenizer, pools_first=settings.pools_first, name=name)

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


def read_settings(path: str | Path, *, local_only: bool, name: str) -> SentenceSettings:
    """Read the files that sentence-transformers keeps beside a model.

    Args:
        path: Folder or Hub id.
        local_only: Never ask the Hub.
        name: What error messages call the model.

    Returns:
        The settings; those of a plain body where there are no such files.

    Raises:
        ModelError: If the folder pools in another way than by mean or first position, or has layers
            after the pooling.
    """
    modules = _read_json(path, "modules.json", local_only=local_only)
    kinds = [str(m.get("type", "")).rsplit(".", 1)[-1] for m in modules or []]
    if unknown := sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"}):
        raise ModelError(
            f"{name}: its modules.json has {unknown} after the body, which is not supported; "
            "expected Transformer, Pooling and Normalize. Give another sentence encoder."
        )
    pooling = _read_json(path, "1_Pooling/config.json", local_only=local_only) or {}
    modes = {key.removeprefix("pooling_mode_") for key, value in pooling.items() if value is True}
    # Since version 5 the mode is one word.
    modes = {str(pooling["pooling_mode"])} if "pooling_mode" in pooling else modes
    modes -= {"include_prompt"}
    if not modes <= {"mean_tokens", "mean", "cls_token", "cls"} or len(modes) > 1:
        raise ModelError(
            f"{name}: it pools by {sorted(modes)}; expected mean_tokens or cls_token alone. Give "
            "another sentence encoder."
        )
    body = _read_json(path, "sentence_bert_config.json", local_only=local_only) or {}
    limit = body.get("max_seq_length")
    return SentenceSettings(
        pools_first=bool(modes & {"cls_token", "cls"}),
        max_length=limit if isinstance(limit, int) else None,
    )


def _read_json(path: str | Path, file: str, *, local_only: bool) -> Any:
    """Return a JSON file of a folder or Hub id, or `None` where there is none."""
    from transformers.utils import cached_file

    found = cached_file(
        str(path),
        file,
        local_files_only=local_only,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else json.loads(Path(found).read_text(encoding="utf-8"))
