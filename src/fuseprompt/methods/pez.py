"""PEZ across tokenizers: continuous embeddings, moved by gradients at the nearest tokens.

Wen et al. (2023), algorithm 1: embeddings are projected to the nearest tokens, the gradient is
taken there, and AdamW applies it to the embeddings. The gradients of models with other tokenizers
come back through the fitted maps (`fuseprompt.fuse.adapter`; Williams & Kolter, 2024, Eq. 5).

It deviates from the paper and its code:
* Only tokens that a search may write are projected to. Tokens of the prefix, the punctuation that
  closes a text and tokens that a search never writes stay as they are.
* Fluency has a gradient, too. What comes after a token depends on the model's own embeddings; the
  choice of the token itself is not, and its gradient comes back through V^+, as in Eq. 3.
* Every projection that is read back is scored exactly, as text; the best of all is the result.
* Constraints and bounds decide between texts, and have no gradient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from fuseprompt.errors import ProblemError
from fuseprompt.fuse.adapter import FuseAdapter
from fuseprompt.methods.gcg import go_to_best
from fuseprompt.models.base import prepend_beginning, replaced_embeddings
from fuseprompt.models.batching import full_precision
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.proposals.fuse import Fuse
from fuseprompt.proposals.language_model import LanguageModelOnly
from fuseprompt.search.beginnings import has_room
from fuseprompt.search.checkpoint import REBUILT
from fuseprompt.search.edited import EditedProblem, EditState
from fuseprompt.search.method import EveryStep, Found, check_counts
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.token_classes import SENTENCE_ENDS

#: AdamW's decay rates and its smallest divisor.
_BETAS: Final = (0.9, 0.999)
_EPSILON: Final = 1e-8

#: What may stand at a position: its own token alone, or one of a kind.
_FIXED, _FIRST, _INITIAL, _ANY = range(-1, 3)


@final
@dataclass(frozen=True)
class PEZ(EveryStep):
    """Settings of the search; the paper has up to 3000 steps.

    Attributes:
        lr: Learning rate (paper: 0.1).
        weight_decay: Of AdamW (paper: 0.1).
        maps: Whose fitted maps and fallback the gradients go through.
        num_tokens: Words of the random text that a problem without a start begins with.
        num_kept: Best texts kept per problem.
    """

    steps: int = 200
    lr: float = 0.1
    weight_decay: float = 0.1
    maps: Fuse = field(default_factory=Fuse)
    num_tokens: int = 8
    num_kept: int = 10

    def __post_init__(self) -> None:
        """Check the counts."""
        check_counts(self, "steps", "num_tokens", "num_kept")

    def init(self, bound: BoundObjective) -> "PEZState":
        """Return the state before the first step: the embeddings of the starts."""
        primary = bound.objective.primary
        if not isinstance(primary, CausalLM):
            raise ProblemError(
                f"PEZ needs a CausalLM as the primary, got {type(primary).__name__}. Load one, or "
                "search by AutoDAN."
            )
        texts = EditState.start(bound, LanguageModelOnly(), self.num_tokens)
        adapters = {}
        for term in bound.terms:
            fitted = bound.objective.state(self.maps, term.term)
            adapters[term.name] = FuseAdapter(
                primary,
                term.model,
                table=fitted.maps,
                add_special_tokens=True,
                fallback=fitted.fallback,
            )
        tokens = _Tokens(bound, primary, tuple(p.current.text for p in texts.problems))
        embeds = primary.vocabulary[tokens.given.ids.to(primary.device)].float().cpu()
        nothing = torch.zeros_like(embeds)
        return PEZState(texts, tokens, adapters, embeds, nothing, nothing)

    def step(self, state: "PEZState") -> "PEZState":
        """Return the state after the texts of the projections, and one step of AdamW from them."""
        bound, tokens = state.texts.editor.bound, state.tokens
        ids = tokens.project(state.embeds)
        texts = bound.objective.primary.tokenizer.decode_batch(ids)
        rows = [i for i, text in enumerate(texts) if has_room(bound, text, i)]
        grad = torch.zeros_like(state.embeds)
        if rows:
            grad[rows] = state.gradient(ids, rows) * (tokens.kinds[rows] != _FIXED)[..., None]
        fresh = [i for i in rows if tokens.is_new(texts[i], i, state.texts.problems[i])]
        exact = bound.evaluate([texts[i] for i in fresh], fresh)
        scored = [(i, texts[i], losses) for i, losses in zip(fresh, exact, strict=True)]
        first = _BETAS[0] * state.first + (1 - _BETAS[0]) * grad
        second = _BETAS[1] * state.second + (1 - _BETAS[1]) * grad.square()
        count = state.num_steps + 1
        size = (second / (1 - _BETAS[1] ** count)).sqrt() + _EPSILON
        kept = state.embeds * (1 - self.lr * self.weight_decay)
        return replace(
            state,
            texts=state.texts.after(range(len(ids)), scored, go_to_best, self.num_kept),
            embeds=kept - self.lr * first / (1 - _BETAS[0] ** count) / size,
            first=first,
            second=second,
        )


@final
@dataclass(frozen=True, eq=False)
class _Tokens:
    """The positions of the texts of a search, and what may stand there."""

    bound: BoundObjective
    primary: CausalLM
    starts: tuple[str, ...]

    @cached_property
    def given(self) -> PaddedIds:
        """The ids of the starts."""
        return PaddedIds.from_lists(self.primary.tokenizer.encode_batch(self.starts))

    @cached_property
    def num_given(self) -> tuple[int, ...]:
        """How many tokens of each text are those of its prefix."""
        encode = self.primary.tokenizer.encode
        return tuple(len(encode(problem.prefix)) for problem in self.bound.problems)

    @cached_property
    def kinds(self) -> Int[Tensor, "p s"]:
        """What may stand at each position."""
        kinds = torch.full(self.given.ids.shape, _FIXED)
        for row, (text, problem) in enumerate(zip(self.starts, self.bound.problems, strict=True)):
            end = len(text.rstrip("".join(SENTENCE_ENDS)))
            _, offsets = self.primary.tokenizer.encode_with_offsets(text)
            for i, (start, stop) in enumerate(offsets):
                if len(problem.prefix) <= start and stop <= end:
                    at_start = _INITIAL if start else _FIRST
                    kinds[row, i] = at_start if start == len(problem.prefix) else _ANY
        is_allowed = self.allowed.cpu()[kinds.clamp_min(0), self.given.ids]
        return torch.where(is_allowed, kinds, _FIXED)

    @cached_property
    def allowed(self) -> Bool[Tensor, "k v"]:
        """The tokens of each kind."""
        classes = self.bound.objective.classes()
        first = torch.zeros_like(classes.word_initial)
        first[classes.first_words[0]] = True
        each = (first, classes.word_initial, classes.word_initial | classes.word_internal)
        return torch.stack(each).to(self.primary.device)

    @cached_property
    def _directions(self) -> Float[Tensor, "v d"]:
        return normalize(self.primary.vocabulary.float(), dim=1)

    @cached_property
    def _inverse(self) -> Float[Tensor, "d d"]:
        """(V^T V)^-1, the part of V^+ that is no product with V."""
        vocabulary = self.primary.vocabulary.float()
        inverse: Tensor = torch.linalg.pinv(vocabulary.T @ vocabulary, hermitian=True)
        return inverse

    def project(self, embeds: Float[Tensor, "p s d"]) -> list[list[int]]:
        """Return the tokens of each text whose embeddings have the nearest directions."""
        near = embeds.to(self._directions.device) @ self._directions.T
        near = near.masked_fill(~self.allowed[self.kinds.clamp_min(0)], -float("inf"))
        ids = torch.where(self.kinds == _FIXED, self.given.ids, near.argmax(dim=2).cpu())
        return PaddedIds(ids, self.given.lengths).to_lists()

    def is_new(self, text: str, number: int, problem: EditedProblem) -> bool:
        """Return whether a text may be a result, and is not the one that was scored last."""
        tokenizer = self.primary.tokenizer
        return (
            text != problem.current.text
            and text.startswith(self.bound.problems[number].prefix)
            and tokenizer.decode(tokenizer.encode(text)) == text
            and self.bound.allows(text, number)
        )

    def fluency(
        self, ids: PaddedIds, problems: Int[Tensor, " n"], embeds: Float[Tensor, "n s d"]
    ) -> Float[Tensor, " n"]:
        """Return the fluency of tokens, differentiable in their embeddings."""
        primary, term = self.primary, self.bound.objective.fluency
        rows = prepend_beginning(primary, self.bound.begin(ids, problems))
        before = rows.lengths - ids.lengths
        given = torch.tensor([self.num_given[p] for p in problems.tolist()])
        places = torch.arange(ids.ids.shape[1])
        row, at = torch.nonzero(places < ids.lengths[:, None], as_tuple=True)
        whole = primary.vocabulary[rows.ids.to(primary.device)]
        whole = whole.index_put((row, before[row] + at), embeds[row, at].to(whole))
        with full_precision(), replaced_embeddings(primary.module, whole):
            logits = primary.module(input_ids=rows.ids.to(primary.device)).logits
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        counted = (at >= given[row]) & (before[row] + at > 0)
        row, at = row[counted], at[counted]
        predicted = log_probs[row, before[row] + at - 1]  # (t, v)
        own = ids.ids[row, at].to(primary.device)
        nats = -predicted.gather(1, own[:, None])[:, 0]
        # The gradient in the choice itself, whose value is no part of the loss.
        choice = (predicted.mean(1, keepdim=True) - predicted).detach()
        choice = choice[:, : len(primary.vocabulary)] @ primary.vocabulary.float() @ self._inverse
        chosen = (choice * embeds[row, at]).sum(1)
        nats = nats + chosen - chosen.detach()
        total = torch.zeros(len(ids), device=nats.device).index_add(0, row.to(nats.device), nats)
        after = log_probs[torch.arange(len(ids)), rows.lengths - 1]
        total = total + self.bound.end_nll(after, problems.tolist()).to(total)
        count = torch.bincount(row, minlength=len(ids)) + 1
        return term.reduce(total, count.to(total.device))


@final
@dataclass(frozen=True, eq=False)
class PEZState:
    """The state of a search: its texts, and the embeddings with AdamW's two moments."""

    texts: EditState
    tokens: _Tokens = field(metadata=REBUILT)
    adapters: Mapping[str, FuseAdapter] = field(metadata=REBUILT)
    embeds: Float[Tensor, "p s d"]
    first: Float[Tensor, "p s d"]
    second: Float[Tensor, "p s d"]

    @property
    def num_steps(self) -> int:
        """Steps taken."""
        return self.texts.num_steps

    def found(self) -> list[Found]:
        """Return the best texts of each problem."""
        return self.texts.found()

    @property
    def fast_path(self) -> float:
        """Share of candidates whose secondary ids came from a table: texts are encoded whole."""
        return 0.0

    def gradient(self, ids: Sequence[Sequence[int]], rows: Sequence[int]) -> Float[Tensor, "n s d"]:
        """Return the gradient of the total loss of some texts in the embeddings of their tokens."""
        bound, primary = self.texts.editor.bound, self.tokens.primary
        padded = PaddedIds.from_lists([list(ids[i]) for i in rows])
        problems = torch.tensor(list(rows))
        at = primary.vocabulary[padded.ids.to(primary.device)].float()
        with torch.enable_grad():
            embeds = at.detach().requires_grad_()
            total = bound.objective.fluency.weight * (
                self.tokens.fluency(padded, problems, embeds).sum()
                if bound.objective.fluency.weight
                else embeds.sum()
            )
            for term in (t for t in bound.terms if t.weight):
                read = self.adapters[term.name](embeds, padded.to_lists())
                theirs = PaddedIds.from_lists([list(row) for row in read.token_ids])
                losses = term.loss(theirs, problems, embeds=read.embeds)
                total = total + term.weight * losses.sum().to(total)
            (grad,) = torch.autograd.grad(total, embeds)
        width = self.embeds.shape[1] - grad.shape[1]
        return torch.nn.functional.pad(grad.cpu(), (0, 0, 0, width))
