"""Continuations: what should follow a text, in one template or in several."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import ProblemError
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.kv_cache import PrefixCache
from fuseprompt.objective.terms import check_text
from fuseprompt.text.retokenize import PaddedIds


class Context(NamedTuple):
    """What stands around a text, and what should follow them."""

    left: str
    right: str
    following: str


@final
@dataclass(frozen=True)
class Continuation:
    """How unlikely given continuations are after a text, in nats per token of each, range [0, inf).

    For prompt discovery: find the text after which the model goes on as wanted. The target is what
    should follow the text, such as " Paris", or pairs of a template, in which "{}" stands for the
    text, and what should follow it: [("{} The capital of France is", " Paris")]. The loss is the
    mean over the pairs. Template, text and continuation are encoded as one string; the tokens that
    count are those which it does not share with the string before the continuation. With
    `only_exact` it has no say in what an edit proposes, and is computed, as fluency is, only for
    the candidates that are best by the other terms: a second opinion at a small price.
    """

    model: CausalLM
    weight: float = 1.0
    name: str = "continuation"
    target: str = "continuation"
    only_exact: bool = False

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the letters of all pairs as numbers."""
        pairs = [("{}", target)] if isinstance(target, str) else target
        if not isinstance(pairs, list | tuple) or not pairs or not all(map(_is_pair, pairs)):
            raise ProblemError(
                f"Term {self.name!r}: expected a text, got {target!r}. Pass what should follow, or "
                'pairs of a template with one {} and what should follow it: [("{} It is", " red")].'
            )
        contexts = [self._read(*pair) for pair in pairs]
        return torch.tensor([float(ord(c)) for c in json.dumps(contexts)])

    def _read(self, template: str, following: str) -> Context:
        left, right = check_text(self.name, template, self.model).split("{}")
        context = Context(left, right, check_text(self.name, following, self.model))
        before = f"{left}a{right}"
        encode = self.model.tokenizer.encode
        word, whole = encode(before), encode(before + following)
        joins = before[-1].isalnum() and following[:1].isalnum()
        is_blank = before.endswith(" ") or not following.strip()
        if joins or is_blank or whole[: len(word)] != word:
            raise ProblemError(
                f"Term {self.name!r}: {following!r} cannot follow {before!r}. Expected a template "
                "that ends in no blank, and a continuation that begins with one or a line break, "
                "such as ' Paris'."
            )
        if len(whole) > self.model.max_length // 2:
            raise ProblemError(
                f"Term {self.name!r}: {following!r} and its template {template!r} together have "
                f"{len(whole)} tokens, {self.model.name} takes {self.model.max_length} with the "
                "text. Shorten it."
            )
        return context

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Refuse: a continuation's likelihood is no function of one output per text."""
        raise ProblemError(
            f"Term {self.name!r} scores text and continuation together: no output stands for the "
            "text alone. Call `bind`."
        )

    def bind(self, targets: Float[Tensor, "p t"]) -> "BoundContinuation":
        """Return the loss of texts against the targets of problems."""
        rows = [[int(c) for c in row if c >= 0] for row in targets.tolist()]
        read = [json.loads("".join(map(chr, row))) for row in rows]
        return BoundContinuation(self.model, tuple(tuple(Context(*c) for c in r) for r in read))


@final
@dataclass(frozen=True)
class BoundContinuation:
    """The continuations of problems; a `JointLoss`."""

    model: CausalLM
    contexts: tuple[tuple[Context, ...], ...]  # of each problem

    @cached_property
    def num_reserved(self) -> int:
        """Tokens that the longest template takes with its continuation."""
        encode, contexts = self.model.tokenizer.encode, [c for each in self.contexts for c in each]
        # A template may cut a text into more tokens than it has alone.
        return max(
            len(encode(f"{c.left}a{c.right}{c.following}")) - 1 + 2 * bool(c.left or c.right)
            for c in contexts
        )

    @cached_property
    def cache(self) -> PrefixCache:
        """What the model knows of texts; lives as long as this object."""
        return PrefixCache(self.model)

    @cached_property
    def _scored(self) -> dict[tuple[str, int], float]:
        """The losses of the last texts; those that grow next are among them."""
        return {}

    @torch.no_grad()
    def score(
        self,
        texts: Sequence[str],
        problems: Int[Tensor, " b"],
        begun: Sequence[tuple[str, int]] | None = None,
    ) -> Float[Tensor, " b"]:
        """Return the exact loss of each text.

        Where texts extend those that are `begun` (with their problems), which extend those of the
        call before, only what is new is computed.
        """
        keys, scored = list(zip(texts, problems.tolist(), strict=True)), self._scored
        if begun is not None and all(key in scored for key in keys):
            return torch.tensor([scored[key] for key in keys])
        jobs = self._encode(texts, problems)
        if begun is None:
            return jobs.mean(self.model.continuation_nll(jobs.rows, jobs.counted))
        lefts = dict.fromkeys(c.left + text for text, p in begun for c in self.contexts[p])
        ids = PaddedIds.from_lists(self.model.tokenizer.encode_batch([*lefts]))
        losses = jobs.mean(self.cache.continuation_nll(jobs.rows, jobs.counted, ids))
        scored.clear()
        scored.update(zip(keys, losses.tolist(), strict=True))
        return losses

    def loss(
        self,
        token_ids: PaddedIds,
        problems: Int[Tensor, " b"],
        *,
        embeds: Float[Tensor, "b s d"] | None = None,
    ) -> Float[Tensor, " b"]:
        """Return the loss of ids with special tokens, differentiable in `embeds`."""
        tokenizer, vocabulary = self.model.tokenizer, self.model.vocabulary
        start, stop = len(tokenizer.prefix_ids), len(tokenizer.suffix_ids)
        own = [row[start : len(row) - stop] for row in token_ids.to_lists()]
        distinct = list(dict.fromkeys(map(tuple, own)))
        decoded = dict(zip(distinct, tokenizer.decode_batch(distinct), strict=True))
        texts = [decoded[tuple(row)] for row in own]
        if embeds is None:
            return self.score(texts, problems)
        jobs = self._encode(texts, problems)
        # The tokens before and after a text; at the borders it may be cut otherwise.
        around, encode = {}, tokenizer.encode
        for c in dict.fromkeys(jobs.contexts):
            after = encode(f"a{c.right}{c.following}")
            left = [*self.model.begin_ids, *encode(c.left)]
            around[c] = left, after[_num_shared(encode("a"), after) :]
        places = torch.full(jobs.rows.ids.shape, -1)
        for i, (row, context) in enumerate(zip(jobs.rows.to_lists(), jobs.contexts, strict=True)):
            for at, there in _align(own[int(jobs.owners[i])], row, *around[context]):
                places[i, there] = start + at
        source = jobs.owners[:, None], places.clamp_min(0)
        read, given = token_ids.ids[source], embeds.to(vocabulary.device)[source]
        plain = vocabulary[jobs.rows.ids].to(given.dtype)
        # A token that a template cuts otherwise has its embedding there, unless another was put in.
        is_other = (read != jobs.rows.ids).to(plain.device)
        is_other &= (given.detach() == vocabulary[read]).all(dim=-1)
        given = torch.where(is_other[..., None], plain + (given - given.detach()), given)
        whole = torch.where((places < 0).to(plain.device)[..., None], plain, given)
        return jobs.mean(self.model.continuation_nll(jobs.rows, jobs.counted, embeds=whole))

    def _encode(self, texts: Sequence[str], problems: Int[Tensor, " b"]) -> "_Jobs":
        """Return whole rows of ids of each text in each of its contexts."""
        owners = [i for i, p in enumerate(problems.tolist()) for _ in self.contexts[p]]
        contexts = [c for p in problems.tolist() for c in self.contexts[p]]
        filled = [c.left + texts[i] + c.right for i, c in zip(owners, contexts, strict=True)]
        encode = self.model.tokenizer.encode_batch
        before, begin = encode(filled), list(self.model.begin_ids)
        whole = encode([f + c.following for f, c in zip(filled, contexts, strict=True)])
        counted = [len(w) - _num_shared(b, w) for b, w in zip(before, whole, strict=True)]
        # Something must come before what counts: if there is nothing else, another text's end.
        end = self.model.end_ids[:1].tolist()
        rows = [
            [*(begin or (end if n == len(w) else [])), *w]
            for w, n in zip(whole, counted, strict=True)
        ]
        jobs = PaddedIds.from_lists(rows), torch.tensor(counted), torch.tensor(owners)
        return _Jobs(*jobs, contexts, len(texts))


@final
@dataclass(frozen=True)
class _Jobs:
    """Whole rows, the tokens of each that count, and the text and the context they are made of."""

    rows: PaddedIds
    counted: Int[Tensor, " n"]
    owners: Int[Tensor, " n"]
    contexts: list[Context]
    num_texts: int

    def mean(self, values: Float[Tensor, " n"]) -> Float[Tensor, " b"]:
        """Return the mean of each text's values."""
        owners = self.owners.to(values.device)
        total = torch.zeros(self.num_texts, dtype=values.dtype, device=values.device)
        counts = torch.bincount(owners, minlength=self.num_texts)
        return total.index_add(0, owners, values) / counts


def _is_pair(pair: Any) -> bool:
    """Return whether a target is a template and what should follow it."""
    texts = isinstance(pair, list | tuple) and all(isinstance(part, str) for part in pair)
    return texts and len(pair) == 2 and pair[0].count("{}") == 1


def _align(
    text: Sequence[int], row: Sequence[int], left: Sequence[int], right: Sequence[int]
) -> list[tuple[int, int]]:
    """Return pairs of a token of a text and the one of a whole row that stands for it.

    `left` and `right` are the tokens around. Where a border cuts otherwise, tokens are paired if
    there are as many of them.
    """
    front = _num_shared([*left, *text], row)
    back = _num_shared([*right[::-1], *text[::-1]], row[front:][::-1])
    first = max(front - len(left), 0)
    last = max(len(text) - max(back - len(right), 0), first)
    pairs = [(j, len(left) + j) for j in range(first)]
    if last - first == len(row) - back - front:
        pairs += [(first + k, front + k) for k in range(last - first)]
    return pairs + [(j, len(row) - len(right) - len(text) + j) for j in range(last, len(text))]


def _num_shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many ids two rows share at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right)))  # noqa: B905
