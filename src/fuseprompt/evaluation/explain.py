"""One step of a caption search under a glass: what each transfer proposes, and what is true.

For one photo and one open text, the language model's likeliest tokens and every transfer's
proposals are judged exactly; the best ten of all these are what a proposer should have found. Only
values here, no page. Read next: `fuseprompt.evaluation.explain_page`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from fuseprompt.errors import SearchError
from fuseprompt.objective.objective import BoundObjective, Problem
from fuseprompt.search.batch import Beams, Candidates
from fuseprompt.search.candidates import TokenClasses
from fuseprompt.search.proposers import LanguageModelProposer, Step, TransferProposer
from fuseprompt.tasks.caption import CaptionSettings
from fuseprompt.tasks.models import CaptionModels
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.transfer.base import Slots, Transfer

#: The best tokens that a proposer should find.
NUM_BEST: Final = 10

#: How far down a transfer's list the rank of a token is looked up.
RANKS: Final = 3000


@final
@dataclass(frozen=True)
class Token:
    """A token that was judged.

    Attributes:
        text: The token as it is appended, its leading blank included.
        nll: What the language model makes of it, in nats.
        image: Exact loss of the image term with it, 1 - cosine.
        total: Exact total loss with it, the end of the text not counted.
    """

    text: str
    nll: float
    image: float
    total: float


@final
@dataclass(frozen=True)
class View:
    """What one transfer makes of the step.

    Attributes:
        name: Name of the transfer.
        proposals: Its proposals, best first, as indices into the tokens.
        totals: Total loss that it predicts for each proposal.
        images: Image loss that it predicts for each new word among the tokens, by index.
        ranks: Its rank, from 1, of each of the best tokens; `None` beyond `RANKS`.
        rho: Rank correlation of predicted and exact image loss over the likeliest new words.
        cost: Forward equivalents of the image-text model that the prediction took.
    """

    name: str
    proposals: tuple[int, ...]
    totals: tuple[float, ...]
    images: Mapping[int, float]
    ranks: tuple[int | None, ...]
    rho: float
    cost: float

    @property
    def found(self) -> int:
        """How many of the best tokens are among the proposals."""
        return sum(rank is not None and rank <= len(self.proposals) for rank in self.ranks)


@final
@dataclass(frozen=True)
class Explanation:
    """A step, judged.

    Attributes:
        text: The open text.
        image: Exact image loss of the open text itself.
        weight: Weight of the image term; fluency's is `fluency_weight`.
        fluency_weight: Weight of fluency.
        tokens: Every token that was judged exactly.
        num_likeliest: How many of them, from the first, are the language model's likeliest.
        best: The best of them by total loss, best first, as indices.
        views: One for each transfer.
    """

    text: str
    image: float
    weight: float
    fluency_weight: float
    tokens: tuple[Token, ...]
    num_likeliest: int
    best: tuple[int, ...]
    views: tuple[View, ...]


@final
@dataclass(frozen=True)
class ExplainSettings:
    """What is explained.

    Attributes:
        text: The open text; `None` takes the best one that a search has before `step`.
        step: Step of the search, from 1.
        search_width: Proposals of each transfer.
        num_likeliest: Tokens that are judged because the language model finds them likely.
    """

    text: str | None = None
    step: int = 2
    search_width: int = 64
    num_likeliest: int = 2000


def explain(
    image: Image.Image,
    transfers: Sequence[Transfer],
    models: CaptionModels,
    *,
    settings: ExplainSettings | None = None,
    caption: CaptionSettings | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Judge one step.

    Args:
        image: The photo.
        transfers: Which transfers to compare.
        models: Loaded models.
        settings: Which step, and how much is judged.
        caption: Settings of the search: prefix, weights, and what proposes up to the step.
        on_progress: Told what is being done.

    Returns:
        The step, judged.

    Raises:
        SearchError: If the text does not survive the tokenizer, ends in white space or is empty, or
            the search ends before the step.

    Cost: about `num_likeliest` plus `search_width` texts for each transfer.
    """
    settings = ExplainSettings() if settings is None else settings
    caption = CaptionSettings() if caption is None else caption
    tell = on_progress if on_progress is not None else lambda _: None
    objective = caption.objective(models)
    prefix = caption.prefix
    if settings.text is not None and not settings.text.startswith(prefix):
        prefix = settings.text
    bound = objective.bind([Problem("0", {"image": image}, prefix)])
    if settings.text is None:
        tell(f"searching up to step {settings.step}")
        beams = _search(bound, caption, settings.step)
    else:
        beams = _open(bound, settings.text)
    primary = objective.primary
    ids = beams.token_ids.ids[:, : int(beams.token_ids.lengths[0])]
    step = Step(beams, primary.next_log_probs(ids).cpu(), lambda _: True)
    classes = TokenClasses(primary.tokenizer, int(primary.vocabulary.shape[0]))
    likeliest = LanguageModelProposer(settings.num_likeliest).start(bound, classes).propose(step)
    lists = []
    for transfer in transfers:
        tell(f"asking {transfer.name}")
        proposer = TransferProposer(transfer, search_width=RANKS).start(bound, classes)
        lists.append(proposer.propose(step))
    judged = _union(likeliest, [_first(ordered, settings.search_width) for ordered in lists])
    tell(f"judging {len(judged):,} texts exactly")
    tokens = _judge(bound, beams, judged)
    order = sorted(range(len(tokens)), key=lambda i: (tokens[i].total, int(judged.tokens[i])))
    best = tuple(order[:NUM_BEST])
    views = [
        _view(bound, step, transfer, ordered, judged, tokens, best, settings, classes)
        for transfer, ordered in zip(transfers, lists, strict=True)
    ]
    return Explanation(
        text=beams.texts[0],
        image=bound.evaluate(beams.texts, [0])[0].terms[bound.terms[0].name],
        weight=bound.terms[0].weight,
        fluency_weight=objective.fluency.weight,
        tokens=tokens,
        num_likeliest=len(likeliest),
        best=best,
        views=tuple(views),
    )


def _search(bound: BoundObjective, caption: CaptionSettings, step: int) -> Beams:
    """Return the best open text that a search has before a step."""
    method = replace(caption, steps=max(step, caption.steps)).method()
    state = method.init(bound)
    for _ in range(step - 1):
        state = method.step(state)
    if not len(state.beams):
        raise SearchError(
            f"The search of this photo ends before step {step}. Ask for an earlier step."
        )
    return state.beams[[int(state.beams.losses.argmin())]]


def _open(bound: BoundObjective, text: str) -> Beams:
    """Return a text of the user's as a beam; its prefix does not count as chosen."""
    primary = bound.objective.primary
    prefix = bound.problems[0].prefix
    ids = primary.tokenizer.encode(text)
    given = len(primary.tokenizer.encode(prefix))
    if not text or text[-1].isspace() or primary.tokenizer.decode(ids) != text:
        raise SearchError(
            f"The text {text!r} is empty, ends in white space, or does not survive the tokenizer "
            f"of {primary.name} (it reads {primary.tokenizer.decode(ids)!r}). Choose another text."
        )
    nll = primary.nll([ids], [given])[0][: len(ids) - given]
    return Beams(
        problems=torch.zeros(1, dtype=torch.long),
        token_ids=PaddedIds.from_lists([ids]),
        num_given=torch.tensor([given]),
        nll_sum=nll.double().sum()[None].cpu(),
        texts=(text,),
        losses=torch.zeros(1),
    )


def _first(candidates: Candidates, count: int) -> Candidates:
    kept = torch.arange(min(count, len(candidates)))
    return _select(candidates, kept)


def _select(candidates: Candidates, kept: Int[Tensor, " k"]) -> Candidates:
    return Candidates(
        candidates.rows[kept],
        candidates.tokens[kept],
        candidates.nll[kept],
        candidates.predicted[kept],
        tuple(candidates.texts[i] for i in kept.tolist()),
    )


def _union(first: Candidates, others: Sequence[Candidates]) -> Candidates:
    """Return all candidates, each token once, in the order in which they come."""
    parts = [first, *others]
    tokens = torch.cat([p.tokens for p in parts])
    seen: dict[int, int] = {}
    for i, token in enumerate(tokens.tolist()):
        seen.setdefault(token, i)
    joined = Candidates(
        torch.cat([p.rows for p in parts]),
        tokens,
        torch.cat([p.nll for p in parts]),
        torch.cat([p.predicted for p in parts]),
        tuple(text for p in parts for text in p.texts),
    )
    return _select(joined, torch.tensor(list(seen.values()), dtype=torch.long))


def _judge(bound: BoundObjective, beams: Beams, judged: Candidates) -> tuple[Token, ...]:
    """Return the exact losses of candidates, as the search would compute them."""
    term, fluency = bound.terms[0], bound.objective.fluency
    problems = beams.problems[judged.rows]
    images, _ = term.score(beams.texts, judged.rows, judged.tokens, problems)
    means = _mean_nll(beams, judged.nll)
    totals = fluency.weight * means + term.weight * images.double()
    texts = bound.objective.primary.tokenizer.token_texts
    columns = (judged.tokens, judged.nll, images, totals)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(Token(texts[token], nll, image, total) for token, nll, image, total in rows)


def _mean_nll(beams: Beams, nll: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """Return the fluency of the one beam with each candidate, float64."""
    return (beams.nll_sum + nll.double()) / float(beams.num_chosen[0] + 1)


def _view(
    bound: BoundObjective,
    step: Step,
    transfer: Transfer,
    ordered: Candidates,
    judged: Candidates,
    tokens: Sequence[Token],
    best: Sequence[int],
    settings: ExplainSettings,
    classes: TokenClasses,
) -> View:
    """Return what a transfer makes of the step, beside what is true."""
    term = bound.terms[0]
    place = {token: i for i, token in enumerate(judged.tokens.tolist())}
    rank = {token: i + 1 for i, token in enumerate(ordered.tokens.tolist())}
    proposals = _first(ordered, settings.search_width)
    words = torch.nonzero(classes.new_words[judged.tokens]).flatten()
    scorer = transfer.bind(bound.objective.primary, term.table, term)
    before = scorer.cost
    slots = Slots.append(step.beams.texts, step.beams.problems)
    predicted = scorer.new_words(slots, judged.tokens[words])[0].cpu()
    cost = scorer.cost - before
    likely = words < settings.num_likeliest
    exact = torch.tensor([tokens[i].image for i in words[likely].tolist()])
    return View(
        name=transfer.name,
        proposals=tuple(place[token] for token in proposals.tokens.tolist()),
        totals=tuple(proposals.predicted.tolist()),
        images=dict(zip(words.tolist(), predicted.tolist(), strict=True)),
        ranks=tuple(rank.get(int(judged.tokens[i])) for i in best),
        rho=rank_correlation(predicted[likely], exact),
        cost=cost,
    )


def rank_correlation(predicted: Float[Tensor, " n"], exact: Float[Tensor, " n"]) -> float:
    """Return Spearman's rho of predictions, equal ones in order, and exact losses sharing ranks."""
    place = predicted.argsort(stable=True).argsort(stable=True).double()
    _, inverse, counts = torch.unique(exact, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts.double() + 1) / 2)[inverse]
    if len(exact) < 2 or len(counts) < 2:
        return 0.0
    return float(torch.corrcoef(torch.stack([place, ranks]))[0, 1])
