"""Encoders of text: to sentence vectors, and to logits of classes as pipelines give them.

The pooling of a sentence encoder is read from the folder's sentence-transformers files; a plain
body without them is mean-pooled. What cannot be done as the folder says is refused.
"""

import json
import re
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import ModelError, reading
from fuseprompt.models.pretrained import PretrainedModel
from fuseprompt.text.retokenize import encode_whole
from fuseprompt.text.tokenizer import Tokenizer

#: The modules of an encoder in sentence-transformers; the last may be left out.
_KINDS = ["Transformer", "Pooling", "Normalize"]

#: What files with a body's settings are named after, in the order in which they are looked for.
_BODIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")

#: How sentence-transformers names the two ways of pooling.
_FIRST, _MEAN = frozenset({"cls", "cls_token"}), frozenset({"mean", "mean_tokens"})


@final
class SentenceEncoder(PretrainedModel):
    """Text to one L2-normalised vector, by a module that returns `last_hidden_state`.

    Attributes:
        pools_first: Take the first position (CLS) instead of the mean over all positions.
    """

    more_files: ClassVar[str] = "modules.json and the files that it names"

    def __init__(
        self,
        module: Any,
        tokenizer: Tokenizer,
        *,
        pools_first: bool = False,
        notes: tuple[str, ...] = (),
        name: str = "",
    ) -> None:
        self.pools_first = pools_first
        super().__init__(module, tokenizer, name=name)
        self.notes += notes

    @classmethod
    def _read_more(
        cls, path: str | Path, tokenizer: Tokenizer, *, local_only: bool, name: str
    ) -> dict[str, Any]:
        """Read how to pool, and a limit of length, from the files of sentence-transformers."""

        def read(file: str, default: Any) -> Any:
            with reading(path, file, name=name):
                return _read_json(path, file, default, local_only=local_only)

        def refuse(file: str, fault: str) -> ModelError:
            return ModelError(f"{name}: its {file} {fault} Give another sentence encoder.")

        modules = [(str(m["type"]), str(m.get("path", ""))) for m in read("modules.json", [])]
        # A module of another package keeps its whole name.
        kinds = [re.sub(r"^sentence_transformers\..*\.", "", kind) for kind, _ in modules]
        if modules and kinds not in (_KINDS, _KINDS[:2]):
            unknown = sorted(set(kinds) - set(_KINDS)) or kinds
            raise refuse(
                "modules.json",
                f"has {unknown} after the body, which is not supported; expected {_KINDS}.",
            )
        body, folder = (modules[0][1], modules[1][1]) if modules else ("", "1_Pooling")
        if body:
            raise refuse("modules.json", f"has the body in {body!r}; expected it in the folder.")
        pooling = read(f"{folder}/config.json", {})
        if modules and not pooling:
            raise refuse("modules.json", f"names {folder!r}, which has no config.json.")
        # Since version 5 the mode is one word; before, the mean was on unless it was turned off.
        flags = {"pooling_mode_mean_tokens": True, **pooling}
        modes = {k.removeprefix("pooling_mode_") for k, value in flags.items() if value is True}
        modes = {str(pooling["pooling_mode"])} if pooling.get("pooling_mode") else modes
        modes -= {"include_prompt"}
        if not modes <= _FIRST | _MEAN or len(modes) != 1:
            fault = f"pools by {sorted(modes)}; expected mean_tokens or cls_token alone."
            raise refuse(f"{folder}/config.json", fault)
        found = (read(f"sentence_{kind}_config.json", {}) for kind in _BODIES)
        settings: dict[str, Any] = next(filter(None, found), {}) if modules else {}
        if more := sorted(k for k, v in settings.items() if v and k.endswith(("args", "kwargs"))):
            raise refuse("sentence_bert_config.json", f"has {more}, which are not supported.")
        if settings.get("do_lower_case") and tokenizer.encode("A Cat") != tokenizer.encode("a cat"):
            fault = "has do_lower_case, but the tokenizer keeps capitals apart."
            raise refuse("sentence_bert_config.json", fault)
        limit = settings.get("max_seq_length")
        if isinstance(limit, int):
            tokenizer.max_length = min(limit, tokenizer.max_length or limit)
        file = "config_sentence_transformers.json"
        whole = read(file, {}) if modules else {}
        if prompt := (whole.get("prompts") or {}).get(whole.get("default_prompt_name")):
            raise refuse(file, f"puts {prompt!r} before every text (default_prompt_name).")
        if whole.get("truncate_dim") is not None:
            raise refuse(file, f"cuts vectors to {whole['truncate_dim']} numbers (truncate_dim).")
        own = whole.get("similarity_fn_name") or "cosine"
        notes = () if own == "cosine" else (f"Compared by cosine, not by its own {own!r}.",)
        return {"pools_first": modes <= _FIRST, "notes": notes}

    def encode(self, texts: list[str]) -> Float[Tensor, "b o"]:
        """Return the normalised vectors of texts, shape (b, o)."""
        return self.outputs(encode_whole(self.tokenizer, texts))

    def _compute(self, ids: Int[Tensor, "b s"], **masked: Any) -> Float[Tensor, "b o"]:
        hidden = self.module(input_ids=ids, **masked).last_hidden_state.float()
        if self.pools_first:
            pooled = hidden[:, 0]
        else:
            own = masked.get("attention_mask", torch.ones_like(ids))[..., None]
            pooled = (hidden * own).sum(dim=1) / own.sum(dim=1)
        return torch.nn.functional.normalize(pooled, dim=-1)


def _read_json(path: str | Path, file: str, default: Any, *, local_only: bool) -> Any:
    """Return what a file holds if it is there; its kind is that of the default.

    Raises:
        TypeError: If it holds something of another kind.
    """
    from transformers.utils import cached_file

    found = cached_file(
        str(path),
        file,
        local_files_only=local_only,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    held = default if found is None else json.loads(Path(found).read_text(encoding="utf-8"))
    if not isinstance(held, type(default)):
        raise TypeError(f"expected a {type(default).__name__}, got {type(held).__name__}")
    return held


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

    def _compute(self, ids: Int[Tensor, "b s"], **masked: Any) -> Float[Tensor, "b o"]:
        logits: Tensor = self.module(input_ids=ids, **masked).logits
        return logits
