"""Texts after which language models go on as wanted, each model with its own tokens."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

import torch

from fuseprompt.errors import FuseError
from fuseprompt.methods.drafts import Drafts
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.hub import load
from fuseprompt.models.kv_cache import PrefixCache
from fuseprompt.objective.continuation import Continuation
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Forbid, Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.search.minimize import OnStep, Result
from fuseprompt.tasks.job import Failure, search
from fuseprompt.tasks.models import Load, load_as
from fuseprompt.tasks.settings import ElicitSettings
from fuseprompt.text.retokenize import PaddedIds

#: A template with one {}, where the text goes, and what should follow.
Pair = tuple[str, str]

#: Tokens that are shown of what a model goes on with.
_SHOWN: Final = 10

#: Words of a continuation that the text must not have are longer than this, where there are any.
_SHORT: Final = 3


@final
@dataclass(frozen=True)
class Elicited:
    """A text for some pairs of a template and what should follow it.

    Attributes:
        pairs: The pairs, as given.
        text: The text, which goes in the place of {}.
        nll: Of each model, for each pair: nats per token of what should follow.
        rank: Of each model, for each pair: place of its first token among all, 1 being the
            likeliest.
        goes_on: Of each model, for each pair: the ten tokens that it finds likeliest, without the
            text and with it.
    """

    pairs: tuple[Pair, ...]
    text: str
    nll: Mapping[str, tuple[float, ...]]
    rank: Mapping[str, tuple[int, ...]]
    goes_on: Mapping[str, tuple[tuple[str, str], ...]]
    result: Result


def elicit(
    items: Sequence[str | Sequence[Pair]],
    settings: ElicitSettings | None = None,
    *,
    objective: Objective | None = None,
    on_step: OnStep | None = None,
) -> Iterator[Elicited | Failure]:
    """Return a text for each item, in order.

    Args:
        items: What should follow a text (" Paris"), or pairs of a template with one {} for the
            text and what should follow it: [("{} The capital of France is", " Paris")].
        settings: Settings.
        objective: From `objective_of`; kept by a caller, its models are loaded once.
        on_step: Called after each step; a problem's id is "NUMBER:WHAT SHOULD FOLLOW".

    Yields:
        A text with what models make of it, or why there is none; a bad item costs one record.

    Raises:
        ModelError: If a model is no language model.

    Example:
        print(next(elicit([" Paris"])).text)
    """
    settings = ElicitSettings() if settings is None else settings
    objective = objective_of(settings) if objective is None else objective
    work: list[Problem | Failure] = []
    every = [[("{}", i)] if isinstance(i, str) else [(a, b) for a, b in i] for i in items]
    for number, pairs in enumerate(every):
        item = " / ".join(following.strip() for _, following in pairs)
        try:
            work.append(_problem(f"{number}:{item}", pairs, objective))
        except FuseError as error:
            work.append(Failure(item, str(error)))
    results = search(objective, Drafts(num_tokens=settings.max_tokens), work, settings, on_step)
    for pairs, one in zip(every, results, strict=True):
        yield one if isinstance(one, Failure) else _elicited(one, tuple(pairs), objective)


def objective_of(settings: ElicitSettings, *, load: Load = load) -> Objective:
    """Return the objective of settings, with the models loaded; the first one writes."""
    options: Any = {"device": settings.device, "dtype": settings.dtype, "load": load}
    models = [load_as(name, CausalLM, **options) for name in settings.model_ids]
    return objective_for(models, settings)


def objective_for(models: Sequence[CausalLM], settings: ElicitSettings) -> Objective:
    """Return the objective of loaded models; the first one writes."""
    weight = settings.weight / len(models)
    terms = [Continuation(model, weight, name=model.name) for model in models]
    return Objective([Fluency(models[0]), *terms], constraints=[_NothingTold()])


def _problem(name: str, pairs: Sequence[Pair], objective: Objective) -> Problem:
    """Return the problem of an item; what a model cannot read is refused here."""
    template, following = pairs[0]
    # For the writer the first token that should follow is the end of the text.
    problem = Problem(name, dict.fromkeys(["continuation"], pairs), template=template + following)
    objective.bind([problem])
    return problem


@final
@dataclass(frozen=True)
class _NothingTold:
    """No text says what should follow: otherwise the best ones repeat it ("umbrella, umbrella")."""

    def allows(self, text: str, problem: Problem) -> bool:
        """Return whether the text has none of the words."""
        return not self.missing(text, problem)

    def missing(self, text: str, problem: Problem) -> float:
        """Return how often it has one."""
        pairs = problem.targets["continuation"]
        return telling(tuple(following for _, following in pairs)).missing(text, problem)

    def wanted(self, text: str, problem: Problem) -> list[str]:
        """Return nothing."""
        return []


@cache
def telling(followings: tuple[str, ...]) -> Forbid:
    """Return what forbids the words of continuations and their plurals."""
    words: list[str] = []
    for following in followings:
        every = [w for w in (word.strip(".,;:!?\"'()") for word in following.split()) if w]
        words += [word for word in every if len(word) > _SHORT] or every
    return Forbid(tuple(form for word in words for form in (word, f"{word}s", f"{word}es")))


def _elicited(result: Result, pairs: tuple[Pair, ...], objective: Objective) -> Elicited:
    """Return a result with what each model makes of each pair."""
    nll, rank, goes_on = {}, {}, {}
    for term in objective.terms:
        assert isinstance(term, Continuation)
        model = term.model
        alone = [term.bind(term.encode_target([pair])[None]) for pair in pairs]
        here = torch.zeros(1, dtype=torch.long)
        nll[model.name] = tuple(float(bound.score([result.text], here)) for bound in alone)
        with_text = [template.replace("{}", result.text) for template, _ in pairs]
        rank[model.name] = tuple(
            _rank(model, filled, following)
            for filled, (_, following) in zip(with_text, pairs, strict=True)
        )
        without = [template.replace("{}", "").strip() for template, _ in pairs]
        shown = go_on(model, [*without, *with_text])
        goes_on[model.name] = tuple(zip(shown[: len(pairs)], shown[len(pairs) :], strict=True))
    return Elicited(pairs, result.text, nll, rank, goes_on, result)


def _rank(model: CausalLM, filled: str, following: str) -> int:
    """Return the place of the first token that should follow among all tokens."""
    before, whole = model.tokenizer.encode_batch([filled, filled + following])
    shared = next((i for i, (a, b) in enumerate(zip(before, whole)) if a != b), len(before))  # noqa: B905
    log_probs = PrefixCache(model).next_log_probs(PaddedIds.from_lists([whole[:shared]]))[0]
    return int((log_probs > log_probs[whole[shared]]).sum()) + 1


def go_on(model: CausalLM, texts: Sequence[str]) -> list[str]:
    """Return what a model finds likeliest after texts, token by token, up to the end."""
    cache, begun = PrefixCache(model), model.tokenizer.encode_batch(list(texts))
    rows = [list(ids) for ids in begun]
    for _ in range(_SHOWN):
        best = cache.next_log_probs(PaddedIds.from_lists(rows)).argmax(dim=1).tolist()
        rows = [[*row, token] for row, token in zip(rows, best, strict=True)]
    shown = model.tokenizer.decode_batch([r[len(b) :] for r, b in zip(rows, begun, strict=True)])
    # Behind its end a text is another one.
    ends = "|".join(map(re.escape, model.tokenizer.special_texts)) or r"(?!)"
    return [re.split(ends, text)[0] for text in shown]
