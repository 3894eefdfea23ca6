"""Encoders of text: to sentence vectors, and to logits of classes as pipelines give them.

The pooling of a sentence encoder is read from the folder's sentence-transformers files; a plain
body without them is mean-pooled. What cannot be done as the folder says is refused.
"""

import json
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import ModelError
from fuseprompt.models.pretrained import PretrainedModel
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer

#: How sentence-transformers names the two ways of pooling.
_FIRST, _MEAN = frozenset({"cls", "cls_token"}), frozenset({"mean", "mean_tokens"})


@final
class SentenceEncoder(PretrainedModel):
    """Text to one L2-normalised vector, by a module that returns `last_hidden_state`.

    Attributes:
        pools_first: Take the first position (CLS) instead of the mean over all positions.
    """

    def __init__(
        self, module: Any, tokenizer: Tokenizer, *, pools_first: bool = False, name: str = ""
    ) -> None:
        self.pools_first = pools_first
        super().__init__(module, tokenizer, name=name)

    @classmethod
    def _read_more(
        cls, path: str | Path, tokenizer: Tokenizer, *, local_only: bool, name: str
    ) -> dict[str, Any]:
        """Read how to pool, and a limit of length, from the files of sentence-transformers."""
        from transformers.utils import cached_file

        def read(file: str) -> Any:
            found = cached_file(
                str(path),
                file,
                local_files_only=local_only,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
            return {} if found is None else json.loads(Path(found).read_text(encoding="utf-8"))

        kinds = {str(m.get("type", "")).rsplit(".", 1)[-1] for m in read("modules.json")}
        if unknown := sorted(kinds - {"Transformer", "Pooling", "Normalize"}):
            raise ModelError(
                f"{name}: its modules.json has {unknown} after the body, which is not supported; "
                "expected Transformer, Pooling and Normalize. Give another sentence encoder."
            )
        pooling = read("1_Pooling/config.json")
        modes = {k.removeprefix("pooling_mode_") for k, value in pooling.items() if value is True}
        # Since version 5 the mode is one word.
        modes = {str(pooling["pooling_mode"])} if "pooling_mode" in pooling else modes
        modes -= {"include_prompt"}
        if not modes <= _FIRST | _MEAN or len(modes) > 1:
            raise ModelError(
                f"{name}: it pools by {sorted(modes)}; expected mean_tokens or cls_token alone. "
                "Give another sentence encoder."
            )
        limit = read("sentence_bert_config.json").get("max_seq_length")
        if isinstance(limit, int):
            tokenizer.max_length = min(limit, tokenizer.max_length or limit)
        return {"pools_first": bool(modes & _FIRST)}

    def encode(self, texts: list[str]) -> Float[Tensor, "b o"]:
        """Return the normalised vectors of texts, shape (b, o)."""
        rows = [
            self.tokenizer.add_special_tokens(ids) for ids in self.tokenizer.encode_batch(texts)
        ]
        return self.outputs(PaddedIds.from_lists(rows))

    def _compute(self, ids: Int[Tensor, "b s"]) -> Float[Tensor, "b o"]:
        hidden = self.module(input_ids=ids).last_hidden_state
        pooled = hidden[:, 0] if self.pools_first else hidden.mean(dim=1)
        return torch.nn.functional.normalize(pooled, dim=-1)


@final
class Classifier(PretrainedModel):
    """Text to logits over labels, of which there are at least two, all different."""

    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"

    def __init__(self, module: Any, tokenizer: Tokenizer, *, name: str = "") -> None:
        labels: dict[int, str] = {int(i): str(n) for i, n in module.config.id2label.items()}
        if len(labels) < 2:
            raise ModelError(
                f"{name}: a classifier needs at least two labels, got {sorted(labels.values())}. "
                "A model with one output is a regressor: write a term for it "
                "(docs/tutorial_custom_term.py shows how)."
            )
        self.labels: tuple[str, ...] = tuple(labels[i] for i in sorted(labels))
        lower = [label.lower() for label in self.labels]
        if repeated := sorted({label for label in lower if lower.count(label) > 1}):
            raise ModelError(
                f"{name}: more than one class is called {repeated}, so a label has no one class. "
                "Rename them in id2label of its config.json."
            )
        super().__init__(module, tokenizer, name=name)

    def _compute(self, ids: Int[Tensor, "b s"]) -> Float[Tensor, "b o"]:
        logits: Tensor = self.module(input_ids=ids).logits
        return logits
