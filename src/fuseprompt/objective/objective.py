"""The objective: a weighted sum of terms over problems, and its truth, the loss of a finished text.

A *term* owns a model, a loss and a weight; a *problem* owns the targets. Results report
what `BoundObjective.evaluate` computes from the text alone, in fp32 and without caches.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar, cast, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fuseprompt.errors import ProblemError
from fuseprompt.models.base import CausalModel, TextModel
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.edit_cache import EditCache
from fuseprompt.models.kv_cache import PrefixCache
from fuseprompt.objective.bound_term import BoundTerm, Term
from fuseprompt.objective.continuation import BoundContinuation
from fuseprompt.objective.problem import Constraint, Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable, concatenate
from fuseprompt.text.token_classes import TokenClasses

#: By how much a term may be over its bound: losses are equal up to this (the last bits of a sum).
BOUND_TOLERANCE: Final = 1e-5

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


@runtime_checkable
class PairSetting(Protocol[S_co]):
    """A setting, such as a proposal, that makes something once per pair of models."""

    def init(self, primary: CausalModel, secondary: TextModel, table: RetokenizationTable) -> S_co:
        """Return what lasts for a primary and a secondary."""
        ...


def derive_seed(seed: int, *names: str) -> int:
    """Return a seed below 2**32 for the part that has these names."""
    text = "\0".join([str(seed), *names])
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4])


@final
@dataclass(frozen=True)
class Evaluation:
    """The exact losses of one text: the weighted sum, and each term's unweighted loss by name.

    `violation` is by how much constraints and bounds are not met; 0 for a text that meets all.
    """

    loss: float
    terms: Mapping[str, float]
    violation: float = 0.0


@final
class Objective:
    """A weighted sum of distinctly named terms, and what every text must keep to.

    The model of its one `Fluency` is the primary. `bounds` holds the largest allowed loss of terms
    by name; a term with a bound may have weight 0.
    """

    def __init__(
        self,
        terms: Sequence[Fluency | Term],
        *,
        constraints: Sequence[Constraint] = (),
        bounds: Mapping[str, float] | None = None,
    ) -> None:
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
        self.constraints: tuple[Constraint, ...] = tuple(constraints)
        self.bounds: dict[str, float] = dict(bounds or {})
        if unknown := set(self.bounds) - set(names):
            raise ProblemError(f"Bounds on unknown terms {sorted(unknown)}; the terms are {names}.")
        for term in terms:
            if not 0.0 <= term.weight < float("inf"):
                raise ProblemError(
                    f"Term {term.name!r}: weight must be a finite number >= 0, was: {term.weight}."
                )
            if term.weight == 0.0 and not (isinstance(term, Fluency) or term.name in self.bounds):
                raise ProblemError(
                    f"Term {term.name!r}: weight 0 would load a model and ignore it. Leave the "
                    "term out."
                )
        self.fluency: Fluency = fluent[0]
        self.terms: tuple[Term, ...] = tuple(t for t in terms if not isinstance(t, Fluency))
        self._tables: dict[str, RetokenizationTable] = {}
        self._classes: dict[bool, TokenClasses] = {}
        self._states: dict[tuple[object, int], object] = {}

    def in_fp32(self) -> "Objective":
        """Return the objective with its models in fp32, as far as these can be loaded.

        The models that are loaded for it stay in memory; `dtypes` says which could not be.
        """
        terms = [_in_fp32(term) for term in (self.fluency, *self.terms)]
        if all(new is old for new, old in zip(terms, (self.fluency, *self.terms), strict=True)):
            return self
        full = Objective(terms, constraints=self.constraints, bounds=self.bounds)
        full._tables = self._tables
        return full

    @property
    def dtypes(self) -> dict[str, str]:
        """The type of each term's model that is not in fp32, by name of the term."""
        models: dict[str, Any] = {self.fluency.name: self.primary}
        models |= {term.name: term.model for term in self.terms}
        types = {name: getattr(model, "dtype", None) for name, model in models.items()}
        return {name: "bfloat16" for name, dtype in types.items() if dtype == torch.bfloat16}

    @property
    def primary(self) -> CausalModel:
        """The model whose tokens are chosen."""
        return self.fluency.model

    @property
    def weights(self) -> dict[str, float]:
        """Weight of every term by name."""
        others = {t.name: float(t.weight) for t in self.terms}
        return {self.fluency.name: float(self.fluency.weight), **others}

    def reweighted(self, weights: Mapping[str, float]) -> "Objective":
        """Return the objective with other weights of some terms; what it made once is shared."""
        terms: list[Any] = [self.fluency, *self.terms]
        every = {t.name: t for t in terms}
        if unknown := set(weights) - set(every):
            raise ProblemError(
                f"Weights of unknown terms {sorted(unknown)}; the terms are {list(every)}."
            )
        for name, weight in weights.items():
            if not dataclasses.is_dataclass(every[name]):
                raise ProblemError(
                    f"Term {name!r} is no dataclass, so that its weight cannot be replaced. Make "
                    "an objective for each weight."
                )
            every[name] = replace(every[name], weight=weight)
        made = Objective([*every.values()], constraints=self.constraints, bounds=self.bounds)
        made._tables, made._classes, made._states = self._tables, self._classes, self._states
        return made

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
            if unknown := set(problem.bounds) - set(self.weights):
                raise ProblemError(
                    f"Problem {problem.id!r}: bounds on unknown terms {sorted(unknown)}; the terms "
                    f"are {list(self.weights)}."
                )
        seeds = tuple(derive_seed(seed, p.id) if p.seed is None else p.seed for p in problems)
        bound = []
        for term in self.terms:
            vectors = [term.encode_target(p.targets[term.target]) for p in problems]
            # Continuations differ in length; no target vector holds -1 itself.
            targets = pad_sequence(vectors, batch_first=True, padding_value=-1.0)
            bound.append(BoundTerm(term, targets, seeds, self.table(term)))
        starts = tuple(p.start for p in problems)
        return BoundObjective(self, tuple(problems), tuple(bound), seeds, starts)


def _in_fp32(term: Any) -> Any:
    """Return a term with its model in fp32, or itself where it has that or can have no other."""
    load = getattr(term.model, "in_fp32", None)
    model = term.model if load is None else load()
    return term if model is term.model else replace(term, model=model)


@final
@dataclass(frozen=True, eq=False)
class BoundObjective:
    """An objective with its problems and, except for fluency, its terms with their targets."""

    objective: Objective
    problems: tuple[Problem, ...]
    terms: tuple[BoundTerm, ...]
    seeds: tuple[int, ...]
    starts: tuple[str | None, ...]  # of the method: a later one begins with what was found

    @cached_property
    def prefixes(self) -> PrefixCache:
        """The primary's next-token probabilities, cached as long as this object lives."""
        # Where it also reads continuations, what it knows of a text serves both.
        primary, joint = self.objective.primary, (term.joint for term in self.terms)
        shared = (j.cache for j in joint if isinstance(j, BoundContinuation) and j.model is primary)
        return next(shared, None) or PrefixCache(primary)

    @cached_property
    def edits(self) -> EditCache:
        """The primary's likelihoods of edited texts, cached as long as this object lives."""
        primary = self.objective.primary
        if not isinstance(primary, CausalLM):
            raise ProblemError(
                "Methods that edit need a CausalLM as the primary, got "
                f"{type(primary).__name__}. Load one, or search by AutoDAN."
            )
        return EditCache(primary)

    def without_caches(self) -> "BoundObjective":
        """Return the same with nothing remembered of any text."""
        return replace(self, terms=tuple(replace(term) for term in self.terms))

    def starting_from(self, texts: Sequence[str]) -> "BoundObjective":
        """Return the same for a method that begins with these texts."""
        return replace(self, starts=tuple(texts))

    @cached_property
    def around(self) -> tuple[tuple[list[int], list[int]], ...]:
        """Primary ids before and after the text of each problem, as its template has them."""
        encode = self.objective.primary.tokenizer.encode
        pairs = (p.around for p in self.problems)
        return tuple((encode(before), encode(after)) for before, after in pairs)

    @cached_property
    def num_given(self) -> tuple[int, ...]:
        """First tokens of each problem's texts that fluency does not count."""
        # Without a prefix, a template, or a token before every text nothing predicts the first one.
        primary = self.objective.primary
        prefixes = primary.tokenizer.encode_batch([p.prefix for p in self.problems])
        return tuple(
            len(prefix) or int(not primary.begin_ids and not before)
            for prefix, (before, _) in zip(prefixes, self.around, strict=True)
        )

    def begin(self, token_ids: PaddedIds, problems: Int[Tensor, " n"]) -> PaddedIds:
        """Return ids of texts with what the template has before them."""
        before = PaddedIds.from_lists([left for left, _ in self.around])
        return concatenate(before[problems], token_ids) if before.ids.shape[1] else token_ids

    def reserved(self, problem: int) -> int:
        """Return how many tokens the primary needs besides those of a text, to score it."""
        before, after = self.around[problem]
        return len(before) + len(after[:1]) + self.objective.primary.tokenizer.num_special

    def end_nll(
        self, log_probs: Float[Tensor, "n v"], problems: Sequence[int]
    ) -> Float[Tensor, " n"]:
        """Return the price of each text's end in nats, given the next token's log-probabilities."""
        nll = -torch.logsumexp(log_probs[:, self.objective.primary.end_ids], dim=1).cpu().double()
        for row, problem in enumerate(problems):
            if after := self.around[problem][1]:
                nll[row] = -log_probs[row, after[0]].cpu()
        return nll

    def allows(self, text: str, problem: int) -> bool:
        """Return whether no constraint forbids a text, finished or not."""
        return all(c.allows(text, self.problems[problem]) for c in self.objective.constraints)

    def missing(self, text: str, problem: int) -> float:
        """Return how many demands of the constraints a text does not meet."""
        own = self.problems[problem]
        return sum((c.missing(text, own) for c in self.objective.constraints), 0.0)

    def demands(self, text: str, problem: int) -> float:
        """Return by how much the constraints are not met."""
        return self.missing(text, problem) + float(not self.allows(text, problem))

    def wanted(self, text: str, problem: int) -> list[str]:
        """Return what the constraints want to be proposed next."""
        own = self.problems[problem]
        return [wanted for c in self.objective.constraints for wanted in c.wanted(text, own)]

    def is_complete(self, text: str, problem: int) -> bool:
        """Return whether a text meets all constraints."""
        return self.allows(text, problem) and not self.missing(text, problem)

    def evaluate(
        self,
        texts: Sequence[str],
        problems: Sequence[int],
        *,
        fluency: Sequence[float] | None = None,
    ) -> list[Evaluation]:
        """Return exact losses of whole texts, prefix included; a known `fluency` is taken over."""
        if not len(texts):
            return []
        index = torch.tensor(problems, dtype=torch.long)
        if fluency is None:
            fluency = self.objective.fluency.evaluate(texts, [self.problems[p] for p in problems])
        values = {self.objective.fluency.name: list(fluency)}
        for term in self.terms:
            values[term.name] = term.evaluate(texts, index).tolist()
        columns = zip(*values.values(), strict=True)
        rows = (dict(zip(values, column, strict=True)) for column in columns)
        return [
            self.weigh(text, problem, terms)
            for text, problem, terms in zip(texts, problems, rows, strict=True)
        ]

    def weigh(self, text: str, problem: int, terms: Mapping[str, float]) -> Evaluation:
        """Return the evaluation of a text whose terms are known."""
        weights = self.objective.weights
        bounds = {**self.objective.bounds, **self.problems[problem].bounds}
        violation = self.demands(text, problem)
        # A bound may be a loss that was computed in another batch.
        over = (terms[name] - most for name, most in bounds.items())
        violation += sum(excess for excess in over if excess > BOUND_TOLERANCE)
        return Evaluation(sum(weights[n] * v for n, v in terms.items()), terms, violation)
