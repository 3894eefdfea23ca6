"""The paper as printed: algorithms 1 and 2, and the search of section 4.2 around them.

It is the control of a reproduction and the baseline of `benchmarks.speed`: literal, and slow on
purpose. A step scores each token of the vocabulary by the language model's log-probability minus
its product with the gradient of the objective at the text's last token. The best are appended as
embeddings, and the exact loss of each begins with these alone: ids by cosine search, decoded,
encoded again by every model, which reads the whole text. Nothing is cached, and no text ends.
docs/evaluating.md lists what the paper leaves open; the rest of the package does all of it
otherwise (docs/paper-notes.md).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fuseprompt.errors import FingerprintError, SearchError
from fuseprompt.fuse.alignment import Alignment, align
from fuseprompt.fuse.gradient import RandomFallback
from fuseprompt.fuse.table import SHARED, JacobianTable, choose_table
from fuseprompt.fuse.tproduct import pad_tubes, t_product
from fuseprompt.methods.published_fit import load_or_fit_published
from fuseprompt.models.base import HasVocabulary
from fuseprompt.models.image_text import ClipModel
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.search.beginnings import begin
from fuseprompt.search.checkpoint import REBUILT
from fuseprompt.search.method import Found, HistoryEntry, check_counts
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable

#: Candidates that are scored in one pass.
_CHUNK: Final = 16


@final
@dataclass(frozen=True, eq=False)
class PublishedSearch:
    """The search of section 4.2, with the paper's settings; it names no number of steps.

    Attributes:
        steps: Tokens that are appended; the authors' code appends 16.
        search_width: Candidates per beam that are scored exactly.
        beam_width: Beams that live on.
        tables: Maps by the secondary's token count, one table for each secondary; by default, those
            of algorithm 2 as printed, kept in the cache.
        tokens: Which tokens may be appended; by default the whole vocabulary, without control
            tokens and pieces of a character.
        on_progress: Called with (maps done, maps in all) while algorithm 2 runs.
    """

    steps: int = 16
    search_width: int = 512
    beam_width: int = 5
    tables: tuple[JacobianTable, ...] = ()
    tokens: Bool[Tensor, " v"] | None = field(default=None, repr=False)
    on_progress: Callable[[int, int], None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the counts."""
        check_counts(self, "steps", "beam_width", "search_width")

    def init(self, bound: BoundObjective) -> "PublishedState":
        """Return the state before the first step: the beginning of each text as its only beam."""
        primary = bound.objective.primary
        _check(bound)
        begun = begin(bound)
        beams = []
        for row, given in zip(begun.token_ids.to_lists(), begun.num_given.tolist(), strict=True):
            embeds = primary.vocabulary[torch.tensor([row], device=primary.vocabulary.device)]
            beams.append(Beams(embeds, torch.full((1,), float("inf")), given))
        maps = PublishedMaps(self.tables, self.on_progress)
        tables = {term.name: bound.objective.state(maps, term.term) for term in bound.terms}
        allowed = self.tokens
        if allowed is None:
            allowed = torch.zeros(len(primary.vocabulary), dtype=torch.bool)
            texts = primary.tokenizer.token_texts[: len(allowed)]
            allowed[: len(texts)] = torch.tensor([bool(t) and "\ufffd" not in t for t in texts])
        nearest = NearestToken(primary.vocabulary)
        histories: tuple[tuple[HistoryEntry, ...], ...] = ((),) * len(beams)
        return PublishedState(bound, tables, allowed, nearest, tuple(beams), histories)

    def step(self, state: "PublishedState") -> "PublishedState":
        """Return the state after one more token."""
        number = state.num_steps + 1
        beams, histories = list(state.beams), list(state.histories)
        for problem, before in enumerate(state.beams):
            if before.is_full:
                continue
            beams[problem], count = self._grow(state, problem)
            text, loss = state.text(beams[problem]), float(beams[problem].losses[0])
            entry = HistoryEntry(number, text, loss, None, count)
            histories[problem] = (*histories[problem], entry)
        return replace(state, beams=tuple(beams), histories=tuple(histories), num_steps=number)

    def is_done(self, state: "PublishedState") -> bool:
        """Return whether every token was appended, or no text has room for one."""
        return state.num_steps == self.steps or all(beams.is_full for beams in state.beams)

    def finish(self, state: "PublishedState") -> list[Found]:
        """Return the best beam of each problem, which does not end as a sentence."""
        pairs = zip(state.beams, state.histories, strict=True)
        return [Found((), (state.text(beams),), history) for beams, history in pairs]

    def _grow(self, state: "PublishedState", problem: int) -> tuple["Beams", int]:
        """Return the beams of a problem after one more token, and the number of candidates."""
        bound, beams = state.bound, state.beams[problem]
        primary = bound.objective.primary
        ids = state.nearest.ids(beams.embeds)
        scores = score_tokens(bound, problem, ids, state.tables)
        scores = scores.masked_fill(~state.allowed.to(scores.device), -float("inf"))
        width = min(self.search_width, int(state.allowed.sum()))
        best = torch.topk(scores, width, dim=1).indices  # (n, c)
        begun = beams.embeds.repeat_interleave(width, dim=0)
        candidates = torch.cat([begun, primary.vocabulary[best.flatten()][:, None]], dim=1)
        losses = torch.cat(
            [
                exact_losses(bound, problem, chunk, beams.num_given, state.nearest)
                for chunk in torch.split(candidates, _CHUNK)
            ]
        )
        kept = torch.argsort(losses, stable=True)[: self.beam_width]
        kept = kept[torch.isfinite(losses[kept])]
        if not len(kept):
            return replace(beams, is_full=True), len(candidates)
        used = candidates.shape[1] + primary.tokenizer.num_special
        is_full = used + 1 >= primary.max_length
        return Beams(candidates[kept], losses[kept], beams.num_given, is_full), len(candidates)


@final
@dataclass(frozen=True, eq=False)
class Beams:
    """The texts of one problem as embeddings, best first, with their losses without the end."""

    embeds: Float[Tensor, "n s dp"]
    losses: Float[Tensor, " n"]
    num_given: int  # tokens of the prefix, whose likelihood does not count
    is_full: bool = False


@final
@dataclass(frozen=True, eq=False)
class PublishedState:
    """The state of a search: a beam of texts for each problem."""

    bound: BoundObjective = field(metadata=REBUILT)
    tables: Mapping[str, JacobianTable] = field(metadata=REBUILT)  # by name of the term
    allowed: Bool[Tensor, " v"] = field(metadata=REBUILT)
    nearest: "NearestToken" = field(metadata=REBUILT)
    beams: tuple[Beams, ...]
    histories: tuple[tuple[HistoryEntry, ...], ...]
    num_steps: int = 0
    fast_path: float = 0.0  # every candidate is tokenised as a whole

    def text(self, beams: Beams) -> str:
        """Return the text of the best beam."""
        ids = self.nearest.ids(beams.embeds[:1])[0].tolist()
        return self.bound.objective.primary.tokenizer.decode(ids)


@final
class NearestToken:
    """Finds the ids of embeddings by cosine search over a vocabulary, with one row per id."""

    def __init__(self, vocabulary: Float[Tensor, "v d"]) -> None:
        self._directions = torch.nn.functional.normalize(vocabulary, dim=-1)

    def ids(self, embeds: Float[Tensor, "b s d"]) -> Int[Tensor, "b s"]:
        """Return the id of the row with the largest cosine at each position."""
        cosines = torch.nn.functional.normalize(embeds, dim=-1) @ self._directions.T
        return cosines.argmax(dim=-1)


@torch.no_grad()
def exact_losses(
    bound: BoundObjective,
    problem: int,
    embeds: Float[Tensor, "c s dp"],
    num_given: int,
    nearest: NearestToken,
) -> Float[Tensor, " c"]:
    """Return the total loss of candidates, each read whole by every model, without the text's end.

    A text that is too long for a model has an infinite loss.
    """
    primary, fluency = bound.objective.primary, bound.objective.fluency
    ids = nearest.ids(embeds).tolist()
    texts = primary.tokenizer.decode_batch(ids)
    nll = primary.nll(ids, [num_given] * len(ids))
    sums = torch.stack([tokens[:-1].double().sum().cpu() for tokens in nll])
    counts = torch.tensor([max(len(tokens) - 1, 1) for tokens in nll])
    total = fluency.weight * fluency.reduce(sums, counts)
    for term in bound.terms:
        rows = _read(term, texts)
        fits = torch.nonzero(rows.lengths <= term.max_length).flatten()
        losses = torch.full_like(total, float("inf"))
        if len(fits):
            loss = term.loss(rows[fits], torch.full_like(fits, problem))
            losses[fits] = loss.to(losses)
        total = total + term.weight * losses
    return total.float()


def _check(bound: BoundObjective) -> None:
    """Refuse what the paper's search has not."""
    if bound.objective.constraints or bound.objective.bounds:
        raise SearchError(
            "The published search has neither constraints nor bounds; leave them out of the "
            "objective, or search by AutoDAN."
        )
    for problem in bound.problems:
        if problem.template != "{}":
            raise SearchError(
                f"Problem {problem.id!r}: the published search has no templates, got "
                f"{problem.template!r}. Leave it out, or search by AutoDAN."
            )
        if not problem.prefix:
            raise SearchError(
                f"Problem {problem.id!r}: the published search begins with a prefix, got ''. Use "
                "the paper's, 'An image of'."
            )


def _read(term: BoundTerm, texts: list[str]) -> PaddedIds:
    """Return the ids with special tokens of whole texts, CLIP's filled up to its full length."""
    tokenizer = term.model.tokenizer
    rows = [tokenizer.add_special_tokens(ids) for ids in tokenizer.encode_batch(texts)]
    if isinstance(term.model, ClipModel) and tokenizer.padding is not None:
        fill = [tokenizer.padding.token_id]
        rows = [row + fill * (term.max_length - len(row)) for row in rows]
    return PaddedIds.from_lists(rows)


def score_tokens(
    bound: BoundObjective,
    problem: int,
    token_ids: Int[Tensor, "n s"],
    tables: Mapping[str, JacobianTable],
) -> Float[Tensor, "n v"]:
    """Return log-probability minus gradient for every token that may come next.

    The gradient is that of the objective at the last token of each text. The language model's own
    loss has none there: the last token's embedding predicts only what is not written yet.
    """
    primary = bound.objective.primary
    tokenizer, vocabulary = primary.tokenizer, primary.vocabulary
    grads = torch.zeros(len(token_ids), vocabulary.shape[1], device=vocabulary.device)
    spelled = [tokenizer.decode_with_spans(row) for row in token_ids.tolist()]
    for term in bound.terms:
        encoded = [term.tokenizer.encode_with_offsets(text) for text, _ in spelled]
        ids = PaddedIds.from_lists([term.tokenizer.add_special_tokens(row) for row, _ in encoded])
        embeds = term.vocabulary[ids.ids.to(term.vocabulary.device)].detach().requires_grad_()
        with torch.enable_grad():
            loss = term.loss(ids, torch.full_like(ids.lengths, problem), embeds=embeds).sum()
            (grad,) = torch.autograd.grad(loss, embeds)
        start = len(term.tokenizer.prefix_ids)
        pairs = zip(spelled, encoded, strict=True)
        for row, ((text, ours), (_, theirs)) in enumerate(pairs):
            words = align(text, ours, theirs)
            own = grad[row, start : start + len(theirs)]
            carried = carry_as_printed(own, words, tables[term.name])
            grads[row] += term.weight * carried[-1].to(grads)
    return primary.next_log_probs(token_ids) - (grads @ vocabulary.float().T)


def carry_as_printed(
    grad: Float[Tensor, "t ds"], alignment: Alignment, table: JacobianTable
) -> Float[Tensor, "s dp"]:
    """Carry a gradient to the primary as algorithm 1 prints it: G[k] = L[k] * T.

    T belongs to the word's number of secondary tokens, and is random where there is none. Its
    slices are transposed, or the product would not exist, but not reversed, as an adjoint's are
    (docs/paper-notes.md, section 5). The product has as many rows as the secondary has tokens: it
    is cut, or filled with zeros, to the primary's. A map of equal tokenizers holds token by token.

    Returns:
        The gradient, one row per token of the primary.
    """
    if table.is_shared:
        return grad @ table.jacobians[SHARED][..., 0].T.to(grad)
    carried = grad.new_zeros(len(alignment.primary_spans), table.widths[0])
    for part in alignment.parts:
        num_ours, num_theirs = part.counts
        if not (num_ours and num_theirs):
            continue
        jacobian = table.jacobians.get((0, num_theirs))
        if jacobian is None:
            jacobian = RandomFallback().jacobian(table, (num_theirs, num_theirs))
        factor = jacobian.transpose(0, 1).to(grad)  # (ds, dp, p)
        word = pad_tubes(grad[slice(*part.secondary)].T[None], factor.shape[-1])
        rows = t_product(word, factor)[0].T[: min(num_ours, num_theirs)]
        carried[part.primary[0] : part.primary[0] + len(rows)] = rows
    return carried


@final
@dataclass(frozen=True)
class PublishedMaps:
    """Chooses or fits the maps of two models; an objective keeps them."""

    tables: tuple[JacobianTable, ...]
    on_progress: Callable[[int, int], None] | None = field(compare=False)

    def init(
        self, primary: HasVocabulary, secondary: HasVocabulary, table: RetokenizationTable
    ) -> JacobianTable:
        """Return the maps of a given table, or those of algorithm 2 as printed."""
        if not self.tables:
            return load_or_fit_published(primary, secondary, on_progress=self.on_progress)
        chosen = choose_table(self.tables, primary, secondary)
        if not chosen.is_shared and any(k for k, _ in chosen.jacobians):
            raise FingerprintError(
                "Algorithm 1 takes a map by the secondary's token count, but the table has maps by "
                "pairs of counts. Fit it with: fuseprompt fit --by-length."
            )
        return chosen
