"""What a search spends: forward equivalents of the secondary, seconds, and exact scores on disk.

`metered` puts a meter between a search and its secondary. Every text that goes through the model
counts 1, every text with a gradient 3, whoever asks; a text whose exact loss was asked for before
in the same search counts nothing. Exact losses are kept on disk by the ids of the text, so that
arms that meet the same texts do not compute them twice; that changes neither results nor costs, and
seconds are charged at a fixed rate per token whether a score was on disk or not.

This file knows no arm and no problem. Read next: `__main__.py`.
"""

import hashlib
import json
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuseprompt.models.base import CausalModel, TextModel
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.objective.objective import BoundObjective, Evaluation
from fuseprompt.proposals.gradient import GRADIENT_COST
from fuseprompt.text.retokenize import PaddedIds

_RECORD = struct.Struct("<16sf")
#: Tokens of a text and rounds of the measurement of a model's rate; the median round counts.
_RATE_LENGTH, _RATE_ROUNDS = 10, 9
#: Distributions over the next token that are remembered, 200 kB each.
_MOST_REMEMBERED = 500


class KnownScores:
    """Exact losses by the ids of a text, appended to a file.

    Args:
        path: The file; made with the first score.
    """

    def __init__(self, path: Path) -> None:
        """Read what is there; a record cut off by a kill is taken away."""
        self._path = path
        self._scores: dict[bytes, float] = {}
        if path.exists():
            data = path.read_bytes()
            whole = len(data) // _RECORD.size * _RECORD.size
            if whole < len(data):
                with path.open("r+b") as file:
                    file.truncate(whole)
            self._scores = dict(_RECORD.iter_unpack(data[:whole]))

    def __len__(self) -> int:
        """Return the number of scores."""
        return len(self._scores)

    def __contains__(self, key: bytes) -> bool:
        """Return whether a score is known."""
        return key in self._scores

    def __getitem__(self, key: bytes) -> float:
        """Return a score."""
        return self._scores[key]

    def add(self, new: dict[bytes, float]) -> None:
        """Keep scores, in memory and on disk."""
        self._scores.update(new)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(b"".join(_RECORD.pack(key, score) for key, score in new.items()))


@dataclass
class Meter:
    """What one search has spent.

    Attributes:
        seconds_per_token: Charged for each token of a text that is scored exactly.
        cost: Forward equivalents.
        scored: Texts that were scored exactly.
    """

    seconds_per_token: float
    cost: float = 0.0
    scored: int = 0
    _charged: float = 0.0
    _excluded: float = 0.0
    _pauses: int = 0
    _asked: set[bytes] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        """CPU seconds of this process, with exact scores at their fixed rate."""
        return time.process_time() - self._excluded + self._charged

    def count_rows(self, rows: int, *, with_gradient: bool) -> None:
        """Count texts that go through the model."""
        if not self._pauses:
            self.cost += rows * (GRADIENT_COST if with_gradient else 1.0)

    def count_scores(self, keys: Sequence[bytes], lengths: Sequence[int]) -> None:
        """Count texts whose exact loss is asked for, each the first time only."""
        if self._pauses:
            return
        for key, length in zip(keys, lengths, strict=True):
            if key not in self._asked:
                self._asked.add(key)
                self.cost += 1.0
                self.scored += 1
                self._charged += length * self.seconds_per_token

    @contextmanager
    def charging(self, seconds: float) -> Iterator[None]:
        """Charge fixed seconds for what happens inside, in place of what it takes."""
        self._charged += 0.0 if self._pauses else seconds
        with self.paused():
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count neither cost nor seconds of what happens inside."""
        started = time.process_time()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._excluded += time.process_time() - started


class MeteredModel:
    """A secondary that counts what goes through it; otherwise the model itself."""

    def __init__(self, model: TextModel) -> None:
        """Put a meter, which each search sets anew, before the model."""
        self._model = model
        self.meter = Meter(0.0)

    def __getattr__(self, name: str) -> Any:
        """Return what the model has."""
        return getattr(self._model, name)

    def outputs(self, token_ids: PaddedIds, *, embeds: Tensor | None = None) -> Tensor:
        """Return the model's outputs."""
        self.meter.count_rows(len(token_ids), with_gradient=embeds is not None)
        return self._model.outputs(token_ids, embeds=embeds)


@dataclass(frozen=True, eq=False)
class MeteredTerm(BoundTerm):
    """A bound term with a meter and, unless `known` is None, scores on disk."""

    meter: Meter
    known: KnownScores | None

    @cached_property
    def model(self) -> Any:  # type: ignore[override]
        """The secondary, metered; what a proposal keeps for a pair of models is not charged."""
        return MeteredModel(self.term.model)

    def score(
        self, texts: Sequence[str], rows: Tensor, tokens: Tensor, problems: Tensor
    ) -> tuple[Tensor, float]:
        """Return what `BoundTerm.score` returns."""
        ids, share = self.table.extend(texts, rows, tokens)
        listed = ids.to_lists()
        keys = [_key(row) for row in listed]
        self.meter.count_scores(keys, [len(row) for row in listed])
        with self.meter.paused():
            if self.known is None:
                return super().score(texts, rows, tokens, problems)
            # Equal texts share a key; the first of each is computed.
            first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self.known}
            if first:
                which = torch.tensor(sorted(first.values()))
                exact, _ = super().score(texts, rows[which], tokens[which], problems[which])
                self.known.add(
                    {keys[i]: s for i, s in zip(which.tolist(), exact.tolist(), strict=True)}
                )
            return torch.tensor([self.known[key] for key in keys], dtype=torch.float32), share


@dataclass(frozen=True, eq=False)
class MeteredObjective(BoundObjective):
    """A bound objective whose reports of finished texts are free, for every arm alike."""

    meter: Meter

    def evaluate(
        self,
        texts: Sequence[str],
        problems: Sequence[int],
        *,
        fluency: Sequence[float] | None = None,
    ) -> list[Evaluation]:
        """Return the exact losses of whole texts."""
        with self.meter.paused():
            return super().evaluate(texts, problems, fluency=fluency)


class RememberingLM:
    """The language model, which answers the same question about the same text only once.

    Arms grow the same texts, above all in their first steps. Seconds are charged to each of them.

    Attributes:
        seconds_per_token: Charged for each token of a text whose next token is asked for.
        meter: Of the search that is going on.
    """

    #: Every text is charged whole, so that what an arm pays does not depend on caches.
    can_continue = False

    def __init__(self, model: CausalModel) -> None:
        """Put a memory before the model."""
        self.model = model
        self.seconds_per_token = 0.0
        self.meter = Meter(0.0)
        self._next: dict[tuple[int, ...], Tensor] = {}
        self._nll: dict[tuple[int, ...], Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        """Return what the model has."""
        return getattr(self.model, name)

    def next_log_probs(self, token_ids: Tensor) -> Tensor:
        """Return what the model returns, row by row."""
        keys = [tuple(row) for row in token_ids.tolist()]
        with self.meter.charging(token_ids.numel() * self.seconds_per_token):
            if len(self._next) > _MOST_REMEMBERED:
                self._next.clear()
            new = [i for i, key in enumerate(keys) if key not in self._next]
            if new:
                rows = self.model.next_log_probs(token_ids[new])
                self._next.update(zip([keys[i] for i in new], rows, strict=True))
            return torch.stack([self._next[key] for key in keys])

    def nll(self, token_ids: Sequence[Sequence[int]], num_given: Sequence[int]) -> list[Tensor]:
        """Return what the model returns, row by row."""
        keys = [(given, *ids) for given, ids in zip(num_given, token_ids, strict=True)]
        new = [i for i, key in enumerate(keys) if key not in self._nll]
        if new:
            rows = self.model.nll([token_ids[i] for i in new], [num_given[i] for i in new])
            self._nll.update(zip([keys[i] for i in new], rows, strict=True))
        return [self._nll[key] for key in keys]


def metered(bound: BoundObjective, meter: Meter, folder: Path | None) -> MeteredObjective:
    """Put a meter, and scores on disk, between a search and its secondaries.

    Args:
        bound: Objective with the targets of one problem.
        meter: Counts.
        folder: Where scores are kept; None keeps none.

    Returns:
        The objective with the same losses.
    """
    assert len(bound.problems) == 1, "scores are kept by problem"
    primary = bound.objective.primary
    if isinstance(primary, RememberingLM):
        primary.meter = meter
    terms = []
    for term in bound.terms:
        known = None if folder is None else KnownScores(folder / f"{_namespace(term)}.scores")
        one = MeteredTerm(term.term, term.targets, term.seeds, term.table, meter, known)
        one.model.meter = meter
        terms.append(one)
    whole = {f.name: getattr(bound, f.name) for f in fields(bound)}
    return MeteredObjective(**{**whole, "terms": tuple(terms)}, meter=meter)


def rate(file: Path, name: str, forward: Callable[[Tensor], Any], *, rows: int) -> float:
    """Return CPU seconds per token of a model, measured once and then read from a file.

    Args:
        file: JSON of rates by name.
        name: Of the model.
        forward: Passes ids, shape (rows, length), through it.
        rows: Texts at once, as many as a search asks for.

    Returns:
        Seconds per token.
    """
    rates: dict[str, float] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if name not in rates:
        ids = torch.randint(1000, 2000, (rows, _RATE_LENGTH))
        with torch.no_grad():
            forward(ids)
            taken = [_timed(forward, ids) for _ in range(_RATE_ROUNDS)]
        rates[name] = sorted(taken)[len(taken) // 2] / ids.numel()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rates, indent=1), "utf-8")
    return rates[name]


def _timed(forward: Callable[[Tensor], Any], ids: Tensor) -> float:
    started = time.process_time()
    forward(ids)
    return time.process_time() - started


def _key(ids: Sequence[int]) -> bytes:
    text = b"".join(i.to_bytes(4, "little") for i in ids)
    return hashlib.blake2b(text, digest_size=16).digest()


def _namespace(term: BoundTerm) -> str:
    """Return a name for everything, besides the text, that a score depends on."""
    model = term.term.model
    first = model.vocabulary[:64].float().cpu().numpy().tobytes()
    names = f"{type(term.term).__name__} {model.name} {model.tokenizer.fingerprint}"
    digest = hashlib.blake2b(names.encode() + first, digest_size=16)
    digest.update(term.targets.cpu().float().numpy().tobytes())
    return digest.hexdigest()
