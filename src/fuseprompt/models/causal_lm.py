"""Causal language models: the primary, whose tokens are chosen.

The log-probabilities of the next token and the exact negative log-likelihood of a text come from
plain forward passes in fp32. Ids come without special tokens; what a text begins with for the model
is put in front here: BOS where the tokenizer adds it, else the end-of-text token that separates
texts in training, or a prompt (`prompted`). As a secondary the model says how likely a text makes
another (`continuation_nll`).
"""

import inspect
import json
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fuseprompt.errors import ModelError
from fuseprompt.models.base import KeyValues, prepend_beginning
from fuseprompt.models.batching import PassSize, full_precision, spread
from fuseprompt.models.pretrained import PretrainedModel
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer

#: Tokens in one forward pass of `nll`, which keeps the logits of all of them (a vocabulary each).
TOKENS_PER_PASS = 1024

#: Tokens that all texts of `nll` must begin with to be read once for all.
_FEWEST_SHARED = 16

#: What families and releases call the argument that takes a cache object.
CACHE_KEYWORDS = ("cache", "past_key_values")

#: Texts with which `CausalLM` finds out whether an end-of-text token goes before every text.
TRIAL_TEXTS = (
    "The committee postponed the vote until next week.",
    "A man is riding a horse along the beach.",
    "What time does the train to London leave?",
    "I like this book because it is short and clear.",
)

#: Nats per token that such a token must save; random weights may save 0.1 by chance.
TRIAL_GAIN = 0.3


@final
class CausalLM(PretrainedModel):
    """A causal language model, which needs a token that ends a text."""

    # `begin_ids` stand before every text (BOS, a prompt); `end_ids` end a text or begin with a
    # newline; `can_continue` says whether `continue_from` was found to equal whole passes.

    auto_class: ClassVar[str] = "AutoModelForCausalLM"
    more_files: ClassVar[str] = "generation_config.json"

    def __init__(self, module: Any, tokenizer: Tokenizer, *, name: str = "") -> None:
        accepts = inspect.signature(module.forward).parameters
        self._keeps_logits = "logits_to_keep" in accepts
        self._cache_keyword = next((n for n in CACHE_KEYWORDS if n in accepts), "")
        super().__init__(module, tokenizer, name=name)
        self.begin_ids: tuple[int, ...] = tokenizer.prefix_ids
        self._nll_size = PassSize(TOKENS_PER_PASS, self.device)
        self.can_continue: bool = bool(self._cache_keyword) and self._continues()
        if not self.can_continue:
            self.notes += ("It keeps no keys and values, so every step computes whole texts.",)
        ends: set[int] = {i for i, t in enumerate(tokenizer.token_texts) if t.startswith("\n")}
        specials: set[int] = set()
        for config in (module.config, getattr(module, "generation_config", None)):
            eos = getattr(config, "eos_token_id", None)
            specials.update([eos] if isinstance(eos, int) else eos or [])
        for text in ("<|endoftext|>", "<|im_end|>"):
            specials.update(tokenizer.special_ids_of(text))
        ends |= specials
        self.end_ids: Int[Tensor, " e"] = torch.tensor(sorted(ends), dtype=torch.long)
        if not ends:
            raise ModelError(
                f"{name}: no token of this model ends a text (no EOS in its config, no token "
                "begins with a newline). Set eos_token_id in its config.json."
            )
        if not self.begin_ids and (separator := self._find_separator(sorted(specials))) is not None:
            self.begin_ids = (separator,)
            self.max_length -= 1

    @classmethod
    def _read_more(
        cls, path: str | Path, tokenizer: Tokenizer, *, local_only: bool, name: str
    ) -> dict[str, Any]:
        # The library passes over a damaged one, and with it over tokens that end a text.
        if (file := Path(path) / "generation_config.json").is_file():
            json.loads(file.read_text(encoding="utf-8"))
        return super()._read_more(path, tokenizer, local_only=local_only, name=name)

    def prompted(self, prompt: str) -> "CausalLM":
        """Return this model with a prompt before every text; weights are shared.

        The prompt is no part of a text: it is neither scored nor reported, but all that follows is
        predicted from it, and texts may be as much shorter. Texts that stand for special tokens are
        read as these tokens, so that a filled chat template is a prompt.

        Raises:
            ModelError: If the prompt leaves no room for a text.
        """
        ids = tuple(self.tokenizer.encode(prompt))
        begin = self.tokenizer.prefix_ids
        if ids[: len(begin)] != begin:  # A template often has BOS itself: never two.
            ids = (*begin, *ids)
        longest = self.max_length + len(self.begin_ids) - len(begin)
        room = longest - (len(ids) - len(begin))
        if room < 2:
            raise ModelError(
                f"{self.name}: the prompt has {len(ids)} tokens, the model takes "
                f"{longest} and a text needs some. Shorten the prompt."
            )
        model = copy(self)
        model.begin_ids, model.max_length = ids, room
        return model

    def in_fp32(self) -> "CausalLM":
        """Return the model in fp32 if it can be loaded, with the same prompt."""
        full = super().in_fp32()
        if full is self:
            return self
        full = copy(full)
        full.begin_ids, full.max_length = self.begin_ids, self.max_length
        return full

    def continuation_nll(
        self,
        token_ids: PaddedIds,
        counted: Int[Tensor, " b"],
        *,
        embeds: Float[Tensor, "b s d"] | None = None,
    ) -> Float[Tensor, " b"]:
        """Return the mean negative log-likelihood of the last `counted` tokens of rows, in nats.

        Rows are whole, `begin_ids` included, and at least one token of each is counted. `embeds`
        stand in for their embeddings; the result is differentiable in them.
        """
        width = int(counted.max())

        def compute(ids: Tensor) -> Tensor:
            kept = min(width, ids.shape[1] - 1)
            logits = self._last_logits(ids, kept + 1)[:, -kept - 1 : -1].float()
            nll = logits.logsumexp(-1) - logits.gather(-1, ids[:, -kept:, None])[..., 0]
            return torch.nn.functional.pad(nll, (width - kept, 0))

        # The logits of a whole vocabulary at every position: few rows at a time.
        nll = self._run(compute, token_ids, embeds=embeds, padded_to=TOKENS_PER_PASS // 16)
        counted = counted.to(nll.device)
        is_counted = torch.arange(width, device=nll.device) >= width - counted[:, None]
        return (nll * is_counted).sum(dim=1) / counted

    def _compute(self, ids: Int[Tensor, "b s"], **masked: Any) -> Float[Tensor, "b v"]:
        return torch.log_softmax(self._last_logits(ids, 1, **masked)[:, -1].float(), dim=-1)

    def _last_logits(
        self, ids: Int[Tensor, "b s"], count: int | Int[Tensor, " k"], **more: Any
    ) -> Tensor:
        """Return logits; not every family can leave those before the last positions out."""
        last = {"logits_to_keep": count} if self._keeps_logits else {}
        logits: Tensor = self.module(input_ids=ids, **last, **more).logits
        return logits

    @torch.no_grad()
    def next_log_probs(self, token_ids: Int[Tensor, "b s"]) -> Float[Tensor, "b v"]:
        """Return the log-probabilities of the token after rows of equal length, shape (b, v)."""
        with full_precision():
            return self._compute(self._begin(token_ids).to(self.device))

    @torch.no_grad()
    def continue_from(
        self, token_ids: Int[Tensor, "b s"], past: KeyValues | None
    ) -> tuple[Float[Tensor, "b v"], KeyValues]:
        """Return the log-probabilities after rows of equal length, and keys and values of all.

        The tokens, at least one, are those after the past, which has one row each and is not
        changed. Without a past they are the whole rows, `begin_ids` included.
        """
        logits, key_values = self._go_on(token_ids, past, 1)
        return torch.log_softmax(logits[:, -1].float(), dim=-1), key_values

    @torch.no_grad()
    def read_from(
        self, token_ids: Int[Tensor, "b s"], past: KeyValues | None, count: int = 0
    ) -> tuple[Float[Tensor, "b k v"], KeyValues]:
        """Return the same after each of the last `count` tokens (0: of all)."""
        key_values: KeyValues = ()
        if past is None and not self.can_continue:
            logits = self._last_logits(token_ids.to(self.device), count)
        else:
            logits, key_values = self._go_on(token_ids, past, count)
        return torch.log_softmax(logits[:, -count:].float(), dim=-1), key_values

    @torch.no_grad()
    def read_endings(
        self,
        rows: PaddedIds,
        starts: Int[Tensor, " b"],
        origins: Int[Tensor, " b"],
        lengths: Int[Tensor, " k"],
        key_values: KeyValues,
        firsts: Int[Tensor, " b"],
    ) -> tuple[Float[Tensor, "n v"], KeyValues]:
        """Read whole rows from their starts on, one behind the other as one row.

        Each begins as one of the texts that have these lengths, keys and values. Only where the
        model `can_pack`.

        Returns:
            The log-probabilities after each row's tokens from `firsts` on, and the keys and values
            (h, n, d) of all tokens that were read.
        """
        # A token sees what its text shares with its origin, and what is before it in its own text.
        of, at = spread(starts, rows.lengths)
        known = torch.unique(origins)
        past_of, past_at = spread(torch.zeros_like(known), lengths[known])
        past_of = known[past_of]
        is_shared = (past_of == origins[of][:, None]) & (past_at < starts[of][:, None])
        is_own = (of == of[:, None]) & (at <= at[:, None])
        visible = torch.cat([is_shared, is_own], dim=1)
        where = (past_of.to(self.device), past_at.to(self.device))
        tokens = [[each.transpose(1, 2)[where] for each in layer] for layer in key_values]
        past = tuple((k.transpose(0, 1)[None], v.transpose(0, 1)[None]) for k, v in tokens)
        wanted = torch.nonzero(at >= firsts[of]).flatten().to(self.device)
        logits, new = self.read_row(rows.ids[of, at], at, visible, past, wanted)
        logits = logits[0] if self._keeps_logits else logits[0, wanted]
        num_past = len(past_at)
        own = tuple((k[0, :, num_past:], v[0, :, num_past:]) for k, v in new)
        return torch.log_softmax(logits.float(), dim=-1), own

    @torch.no_grad()
    def read_row(
        self,
        token_ids: Int[Tensor, " n"],
        positions: Int[Tensor, " n"],
        visible: Bool[Tensor, "n m"],
        past: KeyValues = (),
        wanted: int | Int[Tensor, " k"] = 1,
    ) -> tuple[Tensor, KeyValues]:
        """Return the logits of some tokens of texts that are one row, where the model `can_pack`.

        Each token has its place in its text, and sees what is `visible` of the past and the row.
        """
        unseen = torch.finfo(self.dtype).min
        mask = torch.zeros(visible.shape, dtype=self.dtype).masked_fill(~visible, unseen)
        at, mask = positions[None].to(self.device), mask[None, None].to(self.device)
        more = {"attention_mask": mask, "position_ids": at}
        return self._go_on(token_ids[None], past, wanted, **more)

    @cached_property
    def can_pack(self) -> bool:
        """Whether two endings of a text, read as one row, are predicted as whole texts are."""
        ids = self._sample()
        cut, length = ids.shape[1] // 2, ids.shape[1]
        accepts = inspect.signature(self.module.forward).parameters
        if not (self.can_continue and cut > 1 and "position_ids" in accepts):
            return False
        _, past = self.continue_from(ids[:, :cut], None)
        rows = PaddedIds(ids.expand(2, -1), torch.full((2,), length))
        starts, origins = torch.tensor([cut, cut - 1]), torch.zeros(2, dtype=torch.long)
        try:
            got, _ = self.read_endings(
                rows, starts, origins, torch.tensor([cut]), past, rows.lengths - 1
            )
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return False
        want = self.continue_from(ids, None)[0]
        return self._agree(got, want)

    def _go_on(
        self,
        token_ids: Int[Tensor, "b s"],
        past: KeyValues | None,
        count: int | Int[Tensor, " k"],
        **more: Any,
    ) -> tuple[Tensor, KeyValues]:
        """Return the logits of the last `count` tokens (0: of all) or of some, keys and values."""
        from transformers import DynamicCache

        # A new object each time: the library's caches grow in place. Its layers append by
        # concatenation, so the tensors of `past` stay as they are.
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(past or ()):
            cache.update(keys, values, layer)
        known: dict[str, Any] = {self._cache_keyword: cache, "use_cache": True, **more}
        logits = self._last_logits(token_ids.to(self.device), count, **known)
        return logits, tuple((layer.keys, layer.values) for layer in cache.layers)

    @torch.no_grad()
    def nll(
        self, token_ids: Sequence[Sequence[int]], num_given: Sequence[int]
    ) -> list[Float[Tensor, " n"]]:
        """Return the negative log-likelihood of each token that is not given, then of the end.

        The end is the event that an end-of-text token or a token that begins with a newline
        follows. A first token with nothing before it (no given token, no BOS) has no likelihood and
        is left out; the end of an empty text without BOS is that after the end of another text.
        Texts come without special tokens, results in nats.
        """
        num_begin = len(self.begin_ids)
        past, known = self._read_shared(token_ids, num_given)
        rows = prepend_beginning(self, PaddedIds.from_lists(token_ids))
        results: list[Tensor | None] = [None] * len(token_ids)

        def compute(chunk: Tensor) -> tuple[Tensor, Tensor]:
            # Padding is on the right, where a causal model does not look.
            lengths = rows.lengths[chunk]
            ids = rows.ids[chunk, : int(lengths.max())].to(self.device)
            if known:
                copies = (len(ids), -1, -1, -1)
                same = tuple((k.expand(copies), v.expand(copies)) for k, v in past)
                log_probs, _ = self.read_from(ids[:, known:], same)
            else:
                log_probs = torch.log_softmax(self.module(input_ids=ids).logits.float(), dim=-1)
            follows = -log_probs[:, :-1].gather(-1, ids[:, known + 1 :, None])[..., 0]
            last = (lengths - 1 - known).to(self.device)
            ends = log_probs[torch.arange(len(ids), device=self.device), last]
            ends = ends[:, self.end_ids.to(self.device)]
            return follows.cpu(), -torch.logsumexp(ends, dim=-1).cpu()

        for width, alike in self._nll_size.group(rows.lengths, pads=True):
            for chunk, (follows, end) in self._nll_size.run(alike, width, compute):
                for j, i in enumerate(chunk.tolist()):
                    first = max(num_begin + num_given[i], 1)
                    own = slice(first - 1 - known, int(rows.lengths[i]) - 1 - known)
                    results[i] = torch.cat([follows[j, own], end[j : j + 1]])
        return [r for r in results if r is not None]

    def _read_shared(
        self, token_ids: Sequence[Sequence[int]], num_given: Sequence[int]
    ) -> tuple[KeyValues, int]:
        """Return keys and values of what all rows begin with and no likelihood is asked of."""
        alike = takewhile(lambda column: len(set(column)) == 1, zip(*token_ids, strict=False))
        shared = sum(1 for _ in alike)
        known = len(self.begin_ids) + min(shared, min(num_given, default=0) - 1)
        if len(token_ids) < 2 or known < _FEWEST_SHARED or not self.can_continue:
            return (), 0
        ids = self._begin(torch.tensor([list(token_ids[0])]))[:, :known]
        return self.continue_from(ids, None)[1], known

    def _begin(self, token_ids: Int[Tensor, "b s"]) -> Int[Tensor, "b t"]:
        lengths = torch.full((len(token_ids),), token_ids.shape[1])
        return prepend_beginning(self, PaddedIds(token_ids, lengths)).ids

    def _find_separator(self, specials: Sequence[int]) -> int | None:
        """Return the end-of-text token after which the model reads texts best, if one helps."""
        texts = [ids for ids in self.tokenizer.encode_batch(list(TRIAL_TEXTS)) if len(ids) > 1]
        if not texts or max(map(len, texts)) + 1 >= self.max_length:
            return None

        def read(begin: tuple[int, ...]) -> float:
            # The first token has a likelihood only after another: it does not count.
            model = copy(self)
            model.begin_ids = begin
            rows = zip(model.nll(texts, [0] * len(texts)), texts, strict=True)
            return float(torch.cat([nll[-len(ids) :] for nll, ids in rows]).mean())

        found = {token: read((token,)) for token in specials}
        best = min(found, key=found.__getitem__, default=None)
        return best if best is not None and found[best] < read(()) - TRIAL_GAIN else None

    def _continues(self) -> bool:
        """Return whether going on from a past gives what a whole pass gives."""
        ids = self._sample()
        cut = ids.shape[1] // 2
        if cut == 0:
            return False
        try:
            _, past = self.continue_from(ids[:, :cut], None)
            got, _ = self.continue_from(ids[:, cut:], past)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            # A state of another kind than keys and values, or none.
            return False
        with torch.no_grad(), full_precision():
            want = self._compute(ids.to(self.device))
        return self._agree(got, want)
