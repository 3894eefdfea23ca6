"""Causal language models: the primary, whose tokens are chosen.

Gives the log-probabilities of the next token and the exact negative log-likelihood of a text, both
from plain forward passes in fp32. Ids come without special tokens; where the tokenizer itself
begins a text with BOS, it is put in front here. Not here: what makes a caption fluent
(`fuseprompt.objective.terms`).
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import ModelError
from fuseprompt.models.pretrained import Pretrained, load_pretrained
from fuseprompt.text.tokenizer import Tokenizer

#: Tokens in one forward pass of `nll`, which keeps the logits of all of them (a vocabulary each).
TOKENS_PER_PASS = 1024


@final
class CausalLM:
    """A causal language model.

    Args:
        module: A Hugging Face model for causal language modelling.
        tokenizer: Its tokenizer.
        name: The id or folder it came from.

    Raises:
        ModelError: If the model has no token that ends a text, or cannot be used (`Pretrained`).
    """

    def __init__(self, module: Any, tokenizer: Tokenizer, *, name: str = "") -> None:
        self.name = name
        self.tokenizer = tokenizer
        self._held = Pretrained(module, tokenizer, name=name)
        self._held.try_out(lambda ids: module(input_ids=ids).logits)
        self.max_length: int = self._held.max_length
        self.notes: tuple[str, ...] = self._held.notes
        # Not every family can leave the logits of all other positions out.
        self._keeps_logits = "logits_to_keep" in inspect.signature(module.forward).parameters
        self.end_ids: Int[Tensor, " e"] = torch.tensor(self._find_end_ids(), dtype=torch.long)
        if not len(self.end_ids):
            raise ModelError(
                f"{name}: no token of this model ends a text (no EOS in its config, no token "
                "begins with a newline). Set eos_token_id in its config.json."
            )

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        local_only: bool = True,
        device: torch.device | None = None,
        name: str = "",
    ) -> "CausalLM":
        """Load a folder (or Hub id, when `local_only` is off) in fp32."""
        from transformers import AutoModelForCausalLM as Auto

        module, tokenizer = load_pretrained(path, Auto, local_only=local_only, device=device)
        return cls(module, tokenizer, name=name or str(path))

    @property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The embedding layer applied to every id, shape (v, d)."""
        return self._held.vocabulary

    @torch.no_grad()
    def next_log_probs(self, token_ids: Int[Tensor, "b s"]) -> Float[Tensor, "b v"]:
        """Return the log-probabilities of the token after rows of equal length, shape (b, v)."""
        ids = self._begin(token_ids).to(self._held.device)
        last = {"logits_to_keep": 1} if self._keeps_logits else {}
        logits = self._held.module(input_ids=ids, **last).logits[:, -1]
        return torch.log_softmax(logits.float(), dim=-1)

    @torch.no_grad()
    def nll(
        self, token_ids: Sequence[Sequence[int]], num_given: Sequence[int]
    ) -> list[Float[Tensor, " n"]]:
        """Return the negative log-likelihood of each token that is not given, then of the end.

        The end is the event that an end-of-text token or a token that begins with a newline
        follows. A first token with nothing before it (no given token, no BOS) has no likelihood and
        is left out; the end of an empty text without BOS is that after the end of another text.

        Args:
            token_ids: Ids of each text, without special tokens.
            num_given: How many ids at the start of each text are given, and not scored.

        Returns:
            One tensor per text, in nats; its last entry is the end.
        """
        num_begin = len(self.tokenizer.prefix_ids)
        results: list[Tensor | None] = [None] * len(token_ids)
        by_length: dict[int, list[int]] = {}
        for i, row in enumerate(token_ids):
            by_length.setdefault(len(row), []).append(i)
        chunks = [
            rows[i : i + step]
            for length, rows in by_length.items()
            for step in [max(1, TOKENS_PER_PASS // max(length, 1))]
            for i in range(0, len(rows), step)
        ]
        for rows in chunks:
            own = torch.tensor([list(token_ids[i]) for i in rows], dtype=torch.long)
            ids = self._begin(own).to(self._held.device)
            log_probs = torch.log_softmax(self._held.module(input_ids=ids).logits.float(), dim=-1)
            follows = -log_probs[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]  # (b, s - 1)
            end = -torch.logsumexp(log_probs[:, -1][:, self.end_ids.to(self._held.device)], dim=-1)
            for j, i in enumerate(rows):
                first = max(num_begin + num_given[i], 1)
                results[i] = torch.cat([follows[j, first - 1 :], end[j : j + 1]]).cpu()
        return [r for r in results if r is not None]

    def _begin(self, token_ids: Int[Tensor, "b s"]) -> Int[Tensor, "b t"]:
        begin = torch.tensor(self.tokenizer.prefix_ids, dtype=torch.long)
        if begin.numel() + token_ids.shape[1] == 0:
            # A model needs something to predict from; the end of another text says least.
            begin = self.end_ids[:1]
        return torch.cat([begin.expand(token_ids.shape[0], -1), token_ids], dim=1)

    def _find_end_ids(self) -> list[int]:
        ends: set[int] = {i for i, t in enumerate(self.tokenizer.token_texts) if t.startswith("\n")}
        for config in (
            self._held.module.config,
            getattr(self._held.module, "generation_config", None),
        ):
            eos = getattr(config, "eos_token_id", None)
            ends.update([eos] if isinstance(eos, int) else eos or [])
        ends.update(
            i for t in ("<|endoftext|>", "<|im_end|>") for i in self.tokenizer.special_ids_of(t)
        )
        return sorted(ends)
