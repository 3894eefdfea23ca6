"""What a text begins with: the prefix of its problem, or a whole text to start from, checked."""

import torch

from fuseprompt.errors import SearchError
from fuseprompt.models.base import CausalModel, TextModel
from fuseprompt.objective.bound_term import END_ROOM
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.objective.problem import Problem
from fuseprompt.search.hypotheses import Hypotheses
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.token_classes import SENTENCE_ENDS


def begin(bound: BoundObjective) -> Hypotheses:
    """Return the start of each problem without its sentence end, else the prefix, as hypotheses."""
    check(bound)
    problems, primary = bound.problems, bound.objective.primary
    texts = tuple(map(_open_start, bound.starts, problems))
    ids = primary.tokenizer.encode_batch(texts)
    given = primary.tokenizer.encode_batch([p.prefix for p in problems])
    for problem, start, row, prefix in zip(problems, bound.starts, ids, given, strict=True):
        if row[: len(prefix)] != prefix:
            raise SearchError(
                f"Problem {problem.id!r}: the prefix {problem.prefix!r} is no run of tokens of the "
                f"start {start!r}. Let the prefix end where a word ends."
            )
    nll_sum = torch.zeros(len(problems), dtype=torch.float64)
    if texts != tuple(p.prefix for p in problems):
        nll = bound.objective.fluency.token_nll(texts, problems)
        nll_sum = torch.stack([each[:-1].sum() for each in nll])
    return Hypotheses(
        problems=torch.arange(len(problems)),
        token_ids=PaddedIds.from_lists(ids),
        num_given=torch.tensor(bound.num_given, dtype=torch.long),
        nll_sum=nll_sum,
        texts=texts,
        losses=torch.full((len(problems),), float("inf")),
    )


def _open_start(start: str | None, problem: Problem) -> str:
    if start is None:
        return problem.prefix
    text = start.rstrip("".join(SENTENCE_ENDS)).rstrip()
    return text if len(text) > len(problem.prefix) else problem.prefix


def check(bound: BoundObjective) -> None:
    """Refuse a prefix, start or template that cannot be read back, is forbidden or is too long."""
    # What a method before this one found is no such start: it may fill a model's length.
    primary: CausalModel | TextModel = bound.objective.primary
    models = [(primary, primary.max_length), *((t.model, t.max_length) for t in bound.terms)]
    for number, problem in enumerate(bound.problems):
        kinds = {"prefix": problem.prefix}
        if problem.start is not None:
            kinds["start"] = problem.start
        for kind, text in kinds.items():
            again = primary.tokenizer.decode(primary.tokenizer.encode(text))
            if again != text or text[-1:].isspace():
                raise SearchError(
                    f"The {kind} {text!r} does not survive the tokenizer of {primary.name} (it "
                    f"reads {again!r}) or ends in white space. Choose another {kind}."
                )
            for model, limit in models:
                if control := [t for t in model.tokenizer.special_texts if t in text]:
                    raise SearchError(
                        f"The {kind} of problem {problem.id!r} has the control token "
                        f"{control[0]!r} of {model.name}. Choose another {kind}."
                    )
                ids = model.tokenizer.add_special_tokens(model.tokenizer.encode(text))
                around = sum(map(len, bound.around[number])) if model is primary else 0
                if len(ids) + around + END_ROOM >= limit:
                    raise SearchError(
                        f"The {kind} of problem {problem.id!r} has {len(ids) + around} tokens for "
                        f"{model.name}, which takes texts of at most {limit}. Shorten it."
                    )
        for rule in bound.objective.constraints:
            if not any(rule.allows(text, problem) for text in kinds.values()):
                raise SearchError(
                    f"The prefix {problem.prefix!r} has a forbidden word, so that every text would "
                    f"have it: {rule}. Choose another prefix, or allow the word."
                )


def begin_whole(bound: BoundObjective, num_tokens: int) -> tuple[str, ...]:
    """Return a whole text of each problem for edits: its start, or one drawn from the primary."""
    check(bound)
    drawn = () if all(bound.starts) else _draw(bound, num_tokens)
    return tuple(start or drawn[i] for i, start in enumerate(bound.starts))


def _draw(bound: BoundObjective, num_tokens: int) -> list[str]:
    """Return texts of words that the primary draws at random, each with its problem's seed."""
    primary = bound.objective.primary
    classes = bound.objective.classes()
    texts = [p.prefix for p in bound.problems]
    generators = [torch.Generator().manual_seed(seed) for seed in bound.seeds]
    every = torch.arange(len(texts))
    for _ in range(num_tokens):
        ids = PaddedIds.from_lists(primary.tokenizer.encode_batch(texts))
        log_probs = bound.prefixes.next_log_probs(bound.begin(ids, every)).cpu()
        for row, text in enumerate(texts):
            allowed = classes.initial_ids if text else classes.first_words[0]
            weights = log_probs[row, allowed].exp() + 1e-12
            drawn = torch.multinomial(weights, 1, generator=generators[row])
            longer = text + primary.tokenizer.token_texts[int(allowed[drawn])]
            texts[row] = longer if has_room(bound, longer + SENTENCE_ENDS[0], row) else text
    return [text + SENTENCE_ENDS[0] for text in texts]


def has_room(bound: BoundObjective, text: str, problem: int) -> bool:
    """Return whether every model takes a text of a problem."""
    primary = bound.objective.primary
    length = len(primary.tokenizer.encode(text)) + bound.reserved(problem)
    return length <= primary.max_length and all(
        len(term.tokenizer.encode(text)) + term.tokenizer.num_special <= term.max_length
        for term in bound.terms
    )
