"""What bare forward passes of a run would take: the ceiling of a search.

Read next: `benchmarks.speed.meter`.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from benchmarks.speed.meter import ForwardMeter, Work
from fuseprompt.models.base import CausalModel, TextModel
from fuseprompt.models.batching import TOKENS_PER_PASS
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.objective.objective import Objective
from fuseprompt.text.retokenize import PaddedIds

#: The fastest of so many passes counts, and of so many searches.
REPEATS: Final = 3


def tokens_read(objective: Objective, meter: ForwardMeter) -> int:
    """Return the tokens that all models of an objective read, counted once for a shared matrix."""
    models = [objective.primary, *(term.model for term in objective.terms)]
    shapes = {(m.vocabulary.shape[0], m.vocabulary.shape[1]) for m in models}
    return sum(meter.tokens[shape] for shape in shapes)


def bare_seconds(
    objective: Objective,
    work: Mapping[str, Sequence[Work]],
    *,
    at_all_tokens: bool = False,
    repeats: int = REPEATS,
) -> float:
    """Return the seconds of bare forward passes over so much work, the fastest of several each.

    Args:
        objective: The objective.
        work: Rows and tokens of each step, by term.
        at_all_tokens: Whether the primary predicts after every token, not after the last alone.
        repeats: How often each pass is tried.
    """
    total = sum(
        step.tokens * _bare_seconds_per_token(objective.primary, step, repeats, at_all_tokens)
        for step in work[objective.fluency.name]
    )
    for term in objective.terms:
        total += sum(
            step.tokens * _bare_seconds_per_token(term.model, step, repeats)
            for step in work[term.name]
        )
    return total


def _bare_seconds_per_token(
    model: CausalModel | TextModel, work: Work, repeats: int, at_all_tokens: bool = False
) -> float:
    """Return the seconds per token of a pass with as many rows as fit one, of mean length."""
    if not work.tokens:
        return 0.0
    length = work.length
    rows = max(1, min(work.rows, TOKENS_PER_PASS // length))
    times = []
    for seed in range(repeats):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(len(model.vocabulary), (rows, length), generator=generator)
        suffix = model.tokenizer.suffix_ids[-1:]
        ids[:, length - len(suffix) :] = torch.tensor(suffix)
        started = time.perf_counter()
        if isinstance(model, CausalModel):
            assert isinstance(model, CausalLM), "the benchmark's writers are modules"
            with torch.no_grad():
                model.module(input_ids=ids, logits_to_keep=0 if at_all_tokens else 1)
        else:
            model.outputs(PaddedIds(ids, torch.full((rows,), length)))
        times.append(time.perf_counter() - started)
    return min(times) / (rows * length)
