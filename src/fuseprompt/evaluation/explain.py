"""One step of a caption search, explained: candidates, their exact losses, and a page of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from fuseprompt.errors import SearchError
from fuseprompt.evaluation.page import picture_url, render_page
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.objective.problem import Problem
from fuseprompt.proposals.base import Positions, Proposal
from fuseprompt.proposals.language_model import LanguageModelOnly
from fuseprompt.search.beginnings import begin
from fuseprompt.search.candidates import Proposer
from fuseprompt.search.hypotheses import Hypotheses
from fuseprompt.tasks.caption import method_of, objective_of
from fuseprompt.tasks.models import CaptionModels
from fuseprompt.tasks.settings import CaptionSettings

NUM_BEST: Final = 10  # Tokens that should be proposed: the best of all that were scored.
RANKS: Final = 3000  # Length of a proposal's list in which the rank of a token is looked up.

#: Title and explanation by the name of a proposal.
_ABOUT: Final = {
    "none": ("Language model alone", "The likeliest tokens, the photo unseen."),
    "random": ("Random", "Noise in place of information."),
    "word-table": ("Word table", "Each word scored once, alone; no gradient, no context."),
    "additive": ("Additive word table", "The text's output, moved by each word's effect."),
    "gradient": ("Gradient", "The image loss's gradient at the embedding of each token's pieces."),
    "fuse": ("The paper's map", "The gradient, carried to the tokens by fitted t-product maps."),
}


@final
@dataclass(frozen=True)
class Token:
    """A token that was scored exactly."""

    text: str  # As it is appended, its leading blank included.
    nll: float  # Negative log-likelihood under the language model, in nats.
    image: float  # Loss of the image term, 1 - cosine.
    total: float  # The end of the text not counted.


@final
@dataclass(frozen=True)
class View:
    """The step as one proposal sees it; tokens are indices into the explanation's."""

    name: str
    proposals: tuple[int, ...]  # Best first.
    totals: tuple[float, ...]  # Predicted total loss of each proposal.
    images: Mapping[int, float]  # Predicted image loss of each word-initial token.
    ranks: tuple[int | None, ...]  # From 1, of each of the best tokens; None beyond `RANKS`.
    rho: float  # Rank correlation of predicted and exact image loss, of likely word-initial tokens.
    cost: float  # Of the prediction, in forward equivalents of the image-text model.

    @property
    def found(self) -> int:
        """Number of the best tokens that are among the proposals."""
        return sum(rank is not None and rank <= len(self.proposals) for rank in self.ranks)


@final
@dataclass(frozen=True)
class Explanation:
    """A step, scored."""

    text: str  # What a token is appended to.
    image: float  # Exact image loss of that text itself.
    weight: float  # Of the image term.
    fluency_weight: float
    tokens: tuple[Token, ...]
    num_likeliest: int  # So many of the tokens, the first, are the language model's likeliest.
    best: tuple[int, ...]  # By total loss, best first, as indices.
    views: tuple[View, ...]


def explain(
    image: Image.Image,
    proposals: Sequence[Proposal],
    models: CaptionModels,
    *,
    text: str | None = None,
    step: int = 2,
    search_width: int = 64,
    num_likeliest: int = 2000,
    caption: CaptionSettings | None = None,
    log: Callable[[str], object] = lambda _: None,
) -> Explanation:
    """Return the step after `text`, or step `step` (from 1) of a search, its candidates scored."""
    caption = caption or CaptionSettings()
    objective = objective_of(caption, models)
    prefix = caption.prefix if text is None or text.startswith(caption.prefix) else text
    bound = objective.bind([Problem("0", {"image": image}, prefix, text)])
    log(f"searching up to step {step}" if text is None else "reading the text")
    active = _search(bound, caption, step) if text is None else begin(bound)
    term = bound.terms[0]
    ids = active.token_ids.ids[:, : int(active.token_ids.lengths[0])]
    log_probs = objective.primary.next_log_probs(ids).cpu()
    alone = Proposer.start(bound, LanguageModelOnly(), num_word_internal=num_likeliest)
    likeliest = alone.propose(active, log_probs, width=num_likeliest)
    lists = []
    for proposal in proposals:
        log(f"proposing by {proposal.name}")
        lists.append(Proposer.start(bound, proposal).propose(active, log_probs, width=RANKS))
    # The likeliest first, then what the proposals name; each token once.
    nll_of: dict[int, float] = {}
    for one in (likeliest, *lists):
        count = search_width if one is not likeliest else len(one)
        for token, nll in zip(one.tokens[:count].tolist(), one.nll[:count].tolist(), strict=True):
            nll_of.setdefault(token, nll)
    log(f"scoring {len(nll_of):,} texts exactly")
    tokens = _score(bound, active, nll_of)
    scored = list(nll_of)
    best = sorted(range(len(tokens)), key=lambda i: (tokens[i].total, scored[i]))[:NUM_BEST]
    place = {token: i for i, token in enumerate(scored)}
    initial = torch.nonzero(objective.classes().word_initial[torch.tensor(scored)]).flatten()
    likely = initial < num_likeliest
    exact = torch.tensor([tokens[i].image for i in initial[likely].tolist()])
    positions = Positions.append(active.texts, active.problems)
    views = []
    for proposal, ordered in zip(proposals, lists, strict=True):
        scorer = objective.state(proposal, term.term).bind(term)
        before = scorer.cost
        predicted = scorer.word_initial(positions, torch.tensor(scored)[initial])[0].cpu()
        rank = {token: i + 1 for i, token in enumerate(ordered.tokens.tolist())}
        proposed = ordered.tokens[:search_width].tolist()
        view = View(
            name=proposal.name,
            proposals=tuple(place[token] for token in proposed),
            totals=tuple(ordered.predicted[:search_width].tolist()),
            images=dict(zip(initial.tolist(), predicted.tolist(), strict=True)),
            ranks=tuple(rank.get(scored[i]) for i in best),
            rho=rank_correlation(predicted[likely], exact),
            cost=scorer.cost - before,
        )
        views.append(view)
    return Explanation(
        text=active.texts[0],
        image=bound.evaluate(active.texts, [0])[0].terms[term.name],
        weight=term.weight,
        fluency_weight=objective.fluency.weight,
        tokens=tokens,
        num_likeliest=len(likeliest),
        best=tuple(best),
        views=tuple(views),
    )


def _search(bound: BoundObjective, caption: CaptionSettings, step: int) -> Hypotheses:
    """Return the best active hypothesis that a search has before a step."""
    method = method_of(replace(caption, max_tokens=max(step, caption.max_tokens)))
    state = method.init(bound)
    for _ in range(step - 1):
        state = method.step(state)
    if not len(state.active):
        raise SearchError(f"The search ends before step {step}. Ask for an earlier step.")
    return state.active[[int(state.active.losses.argmin())]]


def _score(
    bound: BoundObjective, active: Hypotheses, nll_of: Mapping[int, float]
) -> tuple[Token, ...]:
    """Return the exact losses of the one text with each token, as a search computes them."""
    term, fluency = bound.terms[0], bound.objective.fluency
    rows = torch.zeros(len(nll_of), dtype=torch.long)
    images, _ = term.score(active.texts, rows, torch.tensor(list(nll_of)), rows)
    nll = torch.tensor(list(nll_of.values()), dtype=torch.float64)
    means = (active.nll_sum + nll) / float(active.num_chosen[0] + 1)
    totals = fluency.weight * means + term.weight * images.double()
    texts = bound.objective.primary.tokenizer.token_texts
    found = zip(nll_of.items(), images.tolist(), totals.tolist(), strict=True)
    return tuple(Token(texts[t], nll, image, total) for (t, nll), image, total in found)


def rank_correlation(predicted: Float[Tensor, " n"], exact: Float[Tensor, " n"]) -> float:
    """Return Spearman's rho of predictions, equal ones in order, and exact losses sharing ranks."""
    place = predicted.argsort(stable=True).argsort(stable=True).double()
    _, inverse, counts = torch.unique(exact, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        return 0.0
    ranks = (counts.cumsum(0).double() - (counts.double() + 1) / 2)[inverse]
    return float(torch.corrcoef(torch.stack([place, ranks]))[0, 1])


def render(found: Explanation, photo: Image.Image, *, name: str) -> str:
    """Return the page, an HTML document; `name` is what to call the photo."""
    return render_page(
        "explain.html",
        title=f"{name}: what comes after “{found.text}”",
        style="explain.css",
        name=name,
        url=picture_url(photo, longest=720),
        found=found,
        ranks=RANKS,
        widths=" or ".join(map(str, sorted({len(view.proposals) for view in found.views}))),
        cards=[_card(found, view) for view in found.views],
        show_token=show_token,
    )


def show_token(text: str) -> str:
    """Return a token as people read it: word-initial ones plain, others after an ellipsis."""
    return text[1:] if text.startswith(" ") and text.strip() else f"…{text}"


def _card(found: Explanation, view: View) -> dict[str, Any]:
    """Return what the template shows of a proposal."""
    title, about = _ABOUT.get(view.name, (view.name, ""))
    pairs = zip(view.proposals, view.totals, strict=True)
    return {
        "title": title,
        "about": about,
        "view": view,
        "missed": [found.tokens[i] for i in found.best if i not in view.proposals],
        "proposed": [(found.tokens[i], total, i in found.best) for i, total in pairs],
        "plot": _scatter(found, view) if len(set(view.images.values())) > 1 else None,
    }


def _scatter(found: Explanation, view: View) -> dict[str, Any]:
    """Return where the template's drawing has predicted and exact image loss of the tokens."""
    xs, ys = list(view.images.values()), [found.tokens[i].image for i in view.images]
    across, up = _scale(xs, 44, 330), _scale(ys, 216, 10)
    ticks = [
        (f"{across(x):.1f}", f"{up(y) + 4:.1f}", f"{x:.2f}", f"{y:.2f}")
        for x, y in ((min(xs), min(ys)), (max(xs), max(ys)))
    ]
    # One path of dots for all words keeps the page small.
    plot: dict[str, Any] = {"ticks": ticks, "stars": [], "other": "", "proposed": ""}
    for i, x, y in zip(view.images, xs, ys, strict=True):
        is_proposed = i in view.proposals
        if i in found.best:
            label = f"{show_token(found.tokens[i].text)}: predicted {x:.3f}, exact {y:.3f}"
            plot["stars"].append((f"{across(x):.1f}", f"{up(y):.1f}", is_proposed, label))
        else:
            plot["proposed" if is_proposed else "other"] += f"M{across(x):.1f} {up(y):.1f}h0"
    return plot


def _scale(values: Sequence[float], start: int, end: int) -> Callable[[float], float]:
    """Return a linear scale from values to pixels, a little wider than the values."""
    low, span = min(values), (max(values) - min(values)) or 1.0
    margin = 0.03 * (end - start)
    return lambda value: start + margin + (value - low) / span * (end - start - 2 * margin)
