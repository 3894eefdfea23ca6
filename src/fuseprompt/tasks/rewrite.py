"""The same text with another label: edits of single words that several models agree on.

Similarity to the original, the number of words changed and fluency are bounds that no result breaks
but one that is marked as not found.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from operator import itemgetter
from typing import Any, Final, final

import torch
from torch import Tensor

from fuseprompt.errors import FuseError
from fuseprompt.methods.edit_beam import EditBeam
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.models.hub import load
from fuseprompt.objective.bound_term import Term
from fuseprompt.objective.continuation import Continuation
from fuseprompt.objective.objective import Objective, derive_seed
from fuseprompt.objective.problem import (
    Constraint,
    Forbid,
    MaxChanged,
    Problem,
    Require,
    word_changes,
)
from fuseprompt.objective.terms import Fluency, Label, TextSimilarity
from fuseprompt.search.beginnings import check
from fuseprompt.search.minimize import OnStep, Result, Scored, iterate
from fuseprompt.tasks.job import GROUP_SIZE, Failure, search
from fuseprompt.tasks.models import Load, load_as, proposal_named
from fuseprompt.tasks.settings import OnProgress, RewriteSettings
from fuseprompt.text.retokenize import encode_whole

#: Weights of the terms, chosen on sentences that no benchmark uses (docs/decisions.md).
WEIGHTS: Final = {"fluency": 1.5, "similarity": 4.0, "label": 1.0, "opinion": 1.0}

#: By how much the loss may rise for each word that is undone at the end. A search also changes
#: words that need no change, for a little fluency.
_UNDONE: Final = 0.5


@final
@dataclass(frozen=True)
class Rewrite:
    """A text with another label.

    Attributes:
        original: The text as it was given.
        found: Whether `text` has the label and keeps to all bounds; else it is the nearest one.
        text: The text now; the original if that has the label already.
        changes: What differs: number of a word in the original, the words there, the words now.
        similarity: Cosine with the original.
        label_before: The classifier's label of the original.
        label_after: The classifier's label of `text`.
        fluency_before: Nats a token of the original.
    """

    original: str
    found: bool
    text: str
    changes: tuple[tuple[int, str, str], ...]
    similarity: float
    label_before: str
    label_after: str
    fluency_before: float
    result: Result


def rewrite(
    texts: str | Sequence[str],
    settings: RewriteSettings,
    *,
    objective: Objective | None = None,
    on_step: OnStep | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Rewrite | Failure]:
    """Return each text with another label, in order, as groups of texts finish.

    Args:
        texts: A text or several.
        settings: The label asked for, and what is kept.
        objective: From `objective_of`; its models and tables are kept from call to call.
        on_step: Called after each step; a problem's id is "NUMBER:TEXT", its place from 0.
        on_progress: Called while word tables are made, once for two models.

    Returns:
        A `Rewrite` for each text, or a `Failure` for one that cannot be edited.

    Raises:
        ProblemError: If the classifier has no such label.

    Example:
        next(rewrite("The soup was cold.", RewriteSettings(label="positive"))).text
    """
    texts = [texts] if isinstance(texts, str) else texts
    objective = objective_of(settings) if objective is None else objective
    label = objective.terms[1]
    assert isinstance(label, Label)
    right = label.encode_target(settings.label)  # Says at once that there is no such label.
    method = EditBeam(proposal=proposal_named("additive", on_progress), only_words=True)
    return _search(texts, settings, objective, method, label.model, right, on_step)


def objective_of(settings: RewriteSettings, *, load: Load = load) -> Objective:
    """Return the objective of settings, its models loaded."""
    options: Any = {"device": settings.device, "dtype": settings.dtype, "load": load}
    lm = load_as(settings.lm, CausalLM, **options)
    encoder = load_as(settings.encoder, SentenceEncoder, **options)
    classifier = load_as(settings.classifier, Classifier, **options)
    terms: list[Fluency | Term] = [
        Fluency(lm, WEIGHTS["fluency"]),
        TextSimilarity(encoder, WEIGHTS["similarity"]),
        Label(classifier, WEIGHTS["label"], name="label", target="label"),
    ]
    if _follows(settings):
        # Words can fool a classifier; it is harder to fool two models that have nothing in common.
        terms.append(Continuation(lm, WEIGHTS["opinion"], "opinion", "opinion", only_exact=True))
    rules: list[Constraint] = [MaxChanged(settings.max_changed)]
    rules += [Forbid(settings.forbid)] if settings.forbid else []
    rules += [Require(settings.require)] if settings.require else []
    return Objective(terms, constraints=rules, bounds={"similarity": 1.0 - settings.keep})


def _follows(settings: RewriteSettings) -> list[tuple[str, str]]:
    """Return what the language model reads, and the label that should follow, if it is asked."""
    name = settings.label.lower()
    asked = settings.ask and not name.startswith("not ")
    return [(settings.ask, f" {name}")] if asked else []


def _search(
    texts: Sequence[str],
    settings: RewriteSettings,
    objective: Objective,
    method: EditBeam,
    classifier: Classifier,
    right: Tensor,
    on_step: OnStep | None,
) -> Iterator[Rewrite | Failure]:
    def is_right(text: str) -> bool:
        return bool(right[classifier.labels.index(_label_of(classifier, text))])

    for start in range(0, len(texts), GROUP_SIZE):
        group = enumerate(texts[start : start + GROUP_SIZE], start)
        work = [_begin(number, text, settings, objective) for number, text in group]
        done = [isinstance(one, Problem) and is_right(one.start or "") for one in work]
        todo = [one for one, is_done in zip(work, done, strict=True) if not is_done]
        results = search(objective, method, todo, settings, on_step)
        for one, is_done in zip(work, done, strict=True):
            if isinstance(one, Problem) and is_done:
                found: Result | Failure = next(iterate(objective, replace(method, steps=0), [one]))
            else:
                found = next(results)
            if isinstance(found, Failure):
                yield found
                continue
            # The label is no bound of the search, which would give up all else for it.
            every = (found, *found.alternatives)
            best = next((s for s in every if not s.violation and is_right(s.text)), None)
            before = found.problem.bounds["fluency"] - settings.less_fluent
            if best is not None:
                best = _undo(objective, found.problem, best, before, is_right)
            yield _read(found, best, classifier, before)


def _begin(
    number: int, text: str, settings: RewriteSettings, objective: Objective
) -> Problem | Failure:
    """Return the problem of a text, or why it cannot be edited."""
    text = text.strip()
    if not any(map(str.isalnum, text)):
        return Failure(text, f"text {number + 1} {text!r}: expected words to edit. Leave it out.")
    targets: dict[str, Any] = {"text": text, "label": settings.label}
    if follows := _follows(settings):
        targets["opinion"] = follows
    seed = derive_seed(settings.seed, settings.label, text)
    problem = Problem(f"{number}:{text}", targets, start=text, seed=seed)
    try:
        bound = objective.bind([problem])
        check(bound)
        (before,) = bound.evaluate([text], [0])
    except FuseError as error:
        return Failure(text, str(error))
    return replace(problem, bounds={"fluency": before.terms["fluency"] + settings.less_fluent})


def _undo(
    objective: Objective,
    problem: Problem,
    best: Scored,
    before: float,
    is_right: Callable[[str], bool],
) -> Scored:
    """Return a text without the changes that it does not need, the least needed one first.

    It gets no less fluent by that, unless it stays as fluent as the original was: `before`.
    """
    name = objective.fluency.name
    bound, old = objective.bind([problem]), (problem.start or "").split()
    while True:
        new, tried = best.text.split(), dict[str, int]()
        for kind, i, j, k, m in SequenceMatcher(None, old, new, False).get_opcodes():
            if kind != "equal":
                # Each word of a longer change alone, too, where words stand for words.
                pairs = [(i + n, i + n + 1, k + n, k + n + 1) for n in range(j - i)]
                for a, b, c, d in [(i, j, k, m), *(pairs if j - i == m - k > 1 else [])]:
                    tried[" ".join([*new[:c], *old[a:b], *new[d:]])] = max(b - a, d - c)
        exact = bound.evaluate(list(tried), [0] * len(tried))
        rise = [
            e.loss - best.loss - _UNDONE * n for e, n in zip(exact, tried.values(), strict=True)
        ]
        order = sorted(zip(rise, tried, exact, strict=True), key=itemgetter(0, 1))
        least = max(best.terms[name], before)
        fluent = ((t, e) for r, t, e in order if r <= 0 and e.terms[name] <= least)
        fit = ((t, e) for t, e in fluent if not e.violation and is_right(t))
        if (found := next(fit, None)) is None:
            return best
        best = Scored.of(*found, objective.primary.tokenizer)


def _read(result: Result, best: Scored | None, classifier: Classifier, before: float) -> Rewrite:
    """Return what was found for a text: the best one that is right, else the nearest."""
    original, shown = result.problem.start or "", best or result
    if best is not None and best is not result:
        result = replace(result, **vars(best))
    return Rewrite(
        original=original,
        found=best is not None,
        text=shown.text,
        changes=tuple(word_changes(original, shown.text)),
        similarity=1.0 - shown.terms["similarity"],
        label_before=_label_of(classifier, original),
        label_after=_label_of(classifier, shown.text),
        fluency_before=before,
        result=result,
    )


def _label_of(classifier: Classifier, text: str) -> str:
    """Return the classifier's own label of a text."""
    with torch.no_grad():
        logits = classifier.outputs(encode_whole(classifier.tokenizer, [text]))
    return classifier.labels[int(logits.argmax())]
