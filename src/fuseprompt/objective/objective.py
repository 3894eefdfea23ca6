"""The objective: a weighted sum of terms over problems, and its truth, the loss of a finished text.

A *term* owns a model, a loss and a weight; a *problem* owns the targets. Results report
what `BoundObjective.evaluate` computes from the text alone, in fp32 and without caches.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, cast, final, runtime_checkable

import torch
from torch.nn.utils.rnn import pad_sequence

from fuseprompt.errors import ProblemError
from fuseprompt.models.base import CausalModel, TextModel
from fuseprompt.models.kv_cache import PrefixCache
from fuseprompt.objective.bound_term import BoundTerm, Term
from fuseprompt.objective.terms import Fluency, check_length
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.text.token_classes import TokenClasses

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


@runtime_checkable
class PairSetting(Protocol[S_co]):
    """A setting, such as a proposal, that makes something once per pair of models."""

    def init(self, primary: CausalModel, secondary: TextModel, table: RetokenizationTable) -> S_co:
        """Return what lasts for a primary and a secondary."""
        ...


@final
@dataclass(frozen=True)
class Problem:
    """One thing to find text for: `targets` by the terms' `target` names.

    Each result begins with `prefix`. Seed `None` is made of the search's seed and of `id`.
    """

    id: str
    targets: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", MappingProxyType(dict(self.targets)))


def derive_seed(seed: int, *names: str) -> int:
    """Return a seed below 2**32 for the part that has these names."""
    text = "\0".join([str(seed), *names])
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4])


@final
@dataclass(frozen=True)
class Evaluation:
    """The exact losses of one text: the weighted sum, and each term's unweighted loss by name."""

    loss: float
    terms: Mapping[str, float]


@final
class Objective:
    """A weighted sum of distinctly named terms; the model of its one `Fluency` is the primary."""

    def __init__(self, terms: Sequence[Fluency | Term]) -> None:
        fluent = [t for t in terms if isinstance(t, Fluency)]
        if len(fluent) != 1:
            raise ProblemError(
                "An objective needs exactly one Fluency term (its model writes the text), got "
                f"{len(fluent)} among {len(terms)} terms. Use weight 0 for a writer whose fluency "
                "should not count."
            )
        names = [t.name for t in terms]
        if len(set(names)) < len(names):
            raise ProblemError(f"Terms need distinct names, got {names}. Pass name=... to one.")
        for term in terms:
            if not 0.0 <= term.weight < float("inf"):
                raise ProblemError(
                    f"Term {term.name!r}: weight must be a finite number >= 0, was: {term.weight}."
                )
            if term.weight == 0.0 and not isinstance(term, Fluency):
                raise ProblemError(
                    f"Term {term.name!r}: weight 0 would load a model and ignore it. Leave the "
                    "term out."
                )
        self.fluency: Fluency = fluent[0]
        self.terms: tuple[Term, ...] = tuple(t for t in terms if not isinstance(t, Fluency))
        self._tables: dict[str, RetokenizationTable] = {}
        self._classes: dict[bool, TokenClasses] = {}
        self._states: dict[tuple[object, int], object] = {}

    @property
    def primary(self) -> CausalModel:
        """The model whose tokens are chosen."""
        return self.fluency.model

    @property
    def weights(self) -> dict[str, float]:
        """Weight of every term by name."""
        others = {t.name: float(t.weight) for t in self.terms}
        return {self.fluency.name: float(self.fluency.weight), **others}

    def table(self, term: Term) -> RetokenizationTable:
        """Return the table from the primary's tokens to a term's, made once for a tokenizer."""
        key = term.model.tokenizer.fingerprint
        if key not in self._tables:
            self._tables[key] = RetokenizationTable(self.primary.tokenizer, term.model.tokenizer)
        return self._tables[key]

    def classes(self, *, ascii_only: bool = True) -> TokenClasses:
        """Return the primary's tokens by what they do to a text, sorted once."""
        if ascii_only not in self._classes:
            rows = int(self.primary.vocabulary.shape[0])
            self._classes[ascii_only] = TokenClasses(
                self.primary.tokenizer, rows, ascii_only=ascii_only
            )
        return self._classes[ascii_only]

    def state(self, setting: PairSetting[S], term: Term) -> S:
        """Return what `setting.init` gives for a term's model; equal settings share it."""
        key = (setting, id(term.model))  # The terms keep their models alive.
        if key not in self._states:
            self._states[key] = setting.init(self.primary, term.model, self.table(term))
        return cast(S, self._states[key])

    def bind(self, problems: Sequence[Problem], *, seed: int = 0) -> "BoundObjective":
        """Return the objective with all targets encoded; `seed` serves problems without one."""
        wanted = {t.target for t in self.terms}
        for problem in problems:
            missing, unknown = wanted - set(problem.targets), set(problem.targets) - wanted
            if missing or unknown:
                raise ProblemError(
                    f"Problem {problem.id!r}: "
                    + (f"missing targets {sorted(missing)}; " if missing else "")
                    + (f"unknown targets {sorted(unknown)}; " if unknown else "")
                    + f"the terms of this objective ask for {sorted(wanted)}."
                )
        seeds = tuple(derive_seed(seed, p.id) if p.seed is None else p.seed for p in problems)
        bound = []
        for term in self.terms:
            vectors = [term.encode_target(p.targets[term.target]) for p in problems]
            # Continuations differ in length; no target vector holds -1 itself.
            targets = pad_sequence(vectors, batch_first=True, padding_value=-1.0)
            bound.append(BoundTerm(term, targets, seeds, self.table(term)))
        return BoundObjective(self, tuple(problems), tuple(bound))


@final
@dataclass(frozen=True, eq=False)
class BoundObjective:
    """An objective with its problems and, except for fluency, its terms with their targets."""

    objective: Objective
    problems: tuple[Problem, ...]
    terms: tuple[BoundTerm, ...]

    @cached_property
    def prefixes(self) -> PrefixCache:
        """The primary's next-token probabilities, cached as long as this object lives."""
        return PrefixCache(self.objective.primary)

    def evaluate(
        self,
        texts: Sequence[str],
        problems: Sequence[int],
        *,
        fluency: Sequence[float] | None = None,
    ) -> list[Evaluation]:
        """Return exact losses of whole texts, prefix included; a known `fluency` is taken over."""
        writer = self.objective.fluency
        if fluency is None:
            prefixes = [self.problems[p].prefix for p in problems]
            fluency = writer.evaluate(texts, prefixes)
        values = {writer.name: list(fluency)}
        index = torch.tensor(problems, dtype=torch.long)
        for term in self.terms:
            tokenizer = term.model.tokenizer
            ids = PaddedIds.from_lists(
                [tokenizer.add_special_tokens(row) for row in tokenizer.encode_batch(list(texts))]
            )
            check_length(int(ids.ids.shape[1]), term.max_length, term.model.name)
            with torch.no_grad():
                values[term.name] = term.loss(ids, index).tolist()
        weights = self.objective.weights
        rows = [
            dict(zip(values, column, strict=True)) for column in zip(*values.values(), strict=True)
        ]
        return [Evaluation(sum(weights[n] * v for n, v in row.items()), row) for row in rows]
