"""How long model forwards take in a search, and how many tokens they read.

The engine is not touched: hooks on all modules of the process see every forward pass, also those of
caches that call a model layer by layer. What a perfect cache would have read is computed afterwards
from the texts themselves. Read next: `benchmarks.speed.search`.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final
from unittest import mock

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from fuseprompt.methods import autodan
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.image_text import ClipModel
from fuseprompt.objective.objective import BoundObjective, Objective
from fuseprompt.search.edits import Edits
from fuseprompt.search.hypotheses import Candidates, Hypotheses
from fuseprompt.search.places import Candidates as Edited
from fuseprompt.search.scoring import exact_losses
from fuseprompt.text.retokenize import encode_whole
from fuseprompt.text.tokenizer import Tokenizer


@final
@dataclass
class ForwardMeter:
    """Counts while `running`.

    Attributes:
        seconds: Wall time inside forward passes of any module.
        tokens: Tokens read by embedding layers, by the shape (rows, width) of their matrix.
    """

    seconds: float = 0.0
    tokens: Counter[tuple[int, int]] = field(default_factory=Counter)
    _depth: int = 0
    _since: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count all forward passes of this process in this block."""
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            self._depth = 0
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._depth == 0:
            self._since = time.perf_counter()
        self._depth += 1
        # Only a batch of ids has two axes; a whole vocabulary is asked for along one.
        if isinstance(module, nn.Embedding) and args and args[0].dim() == 2:
            shape = (module.num_embeddings, module.embedding_dim)
            self.tokens[shape] += args[0].numel()

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._since


@final
@dataclass(frozen=True)
class Asked:
    """What one step of a search asked the models.

    Attributes:
        beams: Texts of the beams.
        rows: Beam of each candidate.
        texts: Text of each candidate.
    """

    beams: tuple[str, ...]
    rows: tuple[int, ...]
    texts: tuple[str, ...]


@contextmanager
def recording(asked: list[Asked]) -> Iterator[None]:
    """Write down what every step of AutoDAN asks the models in this block.

    Args:
        asked: Grows by one entry a step.
    """

    def watched(
        bound: BoundObjective, active: Hypotheses, candidates: Candidates
    ) -> tuple[Float[Tensor, " c"], float]:
        asked.append(Asked(active.texts, tuple(candidates.rows.tolist()), candidates.texts))
        return exact_losses(bound, active, candidates)

    with mock.patch.object(autodan, "exact_losses", watched):
        yield


@contextmanager
def recording_edits(secondaries: list[Asked], primary: list[Asked]) -> Iterator[None]:
    """Write down what every step of a search by edits asks the models in this block.

    Args:
        secondaries: Grows by one entry a step: the texts that are edited, and the candidates.
        primary: The same for those candidates whose fluency is computed.
    """

    def asked(edits: Edits, candidates: Edited) -> Asked:
        return Asked(edits.texts, tuple(candidates.rows.tolist()), candidates.texts)

    score, exact_fluency = Edits.score, Edits._exact_fluency

    def watched(edits: Edits, candidates: Edited, num_exact: int) -> Any:
        secondaries.append(asked(edits, candidates))
        return score(edits, candidates, num_exact)

    def watched_fluency(edits: Edits, candidates: Edited) -> list[float]:
        primary.append(asked(edits, candidates))
        return exact_fluency(edits, candidates)

    with (
        mock.patch.object(Edits, "score", watched),
        mock.patch.object(Edits, "_exact_fluency", watched_fluency),
    ):
        yield


@final
@dataclass(frozen=True)
class Work:
    """Rows of ids that one model reads in one step, and the tokens of all of them."""

    rows: int
    tokens: int

    @property
    def length(self) -> int:
        """Mean tokens of a row, rounded."""
        return max(1, round(self.tokens / max(self.rows, 1)))


def least_work(objective: Objective, asked: Sequence[Asked]) -> dict[str, tuple[Work, ...]]:
    """Return what each model reads at least if every text is asked once and all caches are perfect.

    A causal language model reads the tokens that a beam gained; of CLIP's causal text tower,
    a candidate costs the tokens that it does not share with the beginning of its beam's text; a
    bidirectional encoder reads every text whole.

    Args:
        objective: The objective.
        asked: What a search asked.

    Returns:
        The work of each step, by term.
    """
    work = {objective.fluency.name: tuple(_least_of_primary(objective.primary.tokenizer, asked))}
    for term in objective.terms:
        is_causal = isinstance(term.model, CausalLM) or (
            isinstance(term.model, ClipModel) and term.model.padded_to is None
        )
        work[term.name] = tuple(
            _least_of_secondary(term.model.tokenizer, step, is_causal=is_causal) for step in asked
        )
    return work


def least_work_of_edits(
    objective: Objective, secondaries: Sequence[Asked], primary: Sequence[Asked]
) -> dict[str, tuple[Work, ...]]:
    """Return what each model reads at least in a search by edits.

    A causal language model reads a text from its first token on that no text before it had; a
    secondary reads every candidate whole.

    Args:
        objective: The objective.
        secondaries: What the search asked the secondaries.
        primary: What it asked the primary.

    Returns:
        The work of each step, by term.
    """
    steps = tuple(_least_of_edits(objective.primary.tokenizer, primary))
    work = {objective.fluency.name: steps}
    for term in objective.terms:
        tokenizer = term.model.tokenizer
        work[term.name] = tuple(
            _least_of_secondary(tokenizer, step, is_causal=False) for step in secondaries
        )
    return work


def least_work_of_continuations(
    objective: Objective, asked: Sequence[Asked], following: str
) -> dict[str, tuple[Work, ...]]:
    """Return what each model reads at least where a secondary reads texts and what follows them.

    Args:
        objective: The objective.
        asked: What a search asked.
        following: What should follow; its last token is predicted and never read.

    Returns:
        The work of each step, by term.
    """
    work = {objective.fluency.name: tuple(_least_of_primary(objective.primary.tokenizer, asked))}
    for term in objective.terms:
        encode = term.model.tokenizer.encode_batch
        steps = []
        for step in asked:
            beams = encode(step.beams)
            row_of = dict(zip(step.texts, step.rows, strict=True))
            read = [ids[:-1] for ids in encode([text + following for text in row_of])]
            known = [_shared(beams[r], ids) for ids, r in zip(read, row_of.values(), strict=True)]
            steps.append(Work(len(read), sum(map(len, read)) - sum(known)))
        work[term.name] = tuple(steps)
    return work


def work_of_reading(
    objective: Objective, texts: Sequence[str], following: str = ""
) -> dict[str, tuple[Work, ...]]:
    """Return what each model reads to say the losses of whole texts.

    Args:
        objective: The objective.
        texts: The texts.
        following: What a secondary reads after each; its last token is predicted and never read.

    Returns:
        The work of one step, by term.
    """
    tokens = {
        objective.fluency.name: sum(map(len, objective.primary.tokenizer.encode_batch(texts)))
    }
    for term in objective.terms:
        encode = term.model.tokenizer.encode_batch
        if following:
            tokens[term.name] = sum(len(ids) - 1 for ids in encode([t + following for t in texts]))
        else:
            tokens[term.name] = int(encode_whole(term.model.tokenizer, texts).lengths.sum())
    return {name: (Work(len(texts), count),) for name, count in tokens.items()}


def _least_of_edits(tokenizer: Tokenizer, asked: Sequence[Asked]) -> Iterator[Work]:
    seen: set[tuple[int, ...]] = set()
    for step in asked:
        origins = tokenizer.encode_batch(step.beams)
        rows = {
            tuple(ids): origins[row]
            for ids, row in zip(tokenizer.encode_batch(step.texts), step.rows, strict=True)
        }
        # A text that is edited was mostly a candidate before, and its end is read again never.
        tokens = [len(ids) - min(_shared(of, ids), len(ids) - 1) for ids, of in rows.items()]
        tokens += [len(ids) for ids in set(map(tuple, origins)) - seen]
        seen.update(rows, map(tuple, origins))
        yield Work(len(tokens), sum(tokens))


def _least_of_primary(tokenizer: Tokenizer, asked: Sequence[Asked]) -> Iterator[Work]:
    before: list[tuple[int, ...]] = []
    for step in asked:
        beams = list(dict.fromkeys(map(tuple, tokenizer.encode_batch(step.beams))))
        known = [max((_shared(old, ids) for old in before), default=0) for ids in beams]
        yield Work(len(beams), sum(map(len, beams)) - sum(known))
        before = beams


def _least_of_secondary(tokenizer: Tokenizer, step: Asked, *, is_causal: bool) -> Work:
    beams = [tokenizer.add_special_tokens(ids) for ids in tokenizer.encode_batch(step.beams)]
    texts = [tuple(tokenizer.add_special_tokens(ids)) for ids in tokenizer.encode_batch(step.texts)]
    beam_of = dict(zip(texts, step.rows, strict=True))
    known = [_shared(beams[row], ids) if is_causal else 0 for ids, row in beam_of.items()]
    return Work(len(beam_of), sum(map(len, beam_of)) - sum(known))


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many ids two rows share at their beginning."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
