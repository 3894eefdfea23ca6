"""The objective: a weighted sum of terms over problems, and its truth, the loss of a finished text.

A *term* owns a model, a loss and a weight; a *problem* owns the targets. `Objective.bind` reads the
targets of a list of problems once; `BoundObjective.evaluate` computes every term from the text
alone, in fp32 and without caches: what it says is what is reported. Read next:
`fuseprompt.objective.terms`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fuseprompt.errors import ProblemError
from fuseprompt.models.base import CausalModel, EmbedLoss, StemCache, StemSharing, TextModel
from fuseprompt.models.prefix_cache import PrefixCache
from fuseprompt.objective.fluency import Fluency
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable, distinct_rows

#: Tokens that a secondary keeps free for the punctuation that closes a sentence.
END_ROOM: Final = 2


@final
@dataclass(frozen=True)
class Problem:
    """One thing to find text for.

    Attributes:
        id: Name of the problem, unique in a list; seeds derive from it.
        targets: What each term compares the text with, by the term's `target` name.
        prefix: Text that every result begins with.
    """

    id: str
    targets: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""

    def __post_init__(self) -> None:
        """Freeze a copy of the targets."""
        object.__setattr__(self, "targets", MappingProxyType(dict(self.targets)))


@runtime_checkable
class Term(Protocol):
    """A summand of the objective that compares a text with a target."""

    @property
    def name(self) -> str:
        """Name in results."""
        ...

    @property
    def weight(self) -> float:
        """Factor of this term in the total."""
        ...

    @property
    def target(self) -> str:
        """Name of the target that each problem must have."""
        ...

    @property
    def model(self) -> TextModel:
        """The secondary model."""
        ...

    def read_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return a target as a vector; raise a `FuseError` if it cannot be read."""
        ...

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return the loss of each output against its target vector, differentiable in `outputs`."""
        ...


@runtime_checkable
class JointTerm(Term, Protocol):
    """A term whose model must see text and target together, so that no output stands for a text.

    Such a term works with every transfer that takes gradients; a context-free table, which
    compares stored outputs, cannot know it.
    """

    def reserve(self, targets: Float[Tensor, "p t"]) -> int:
        """Return how many tokens of the model the longest target takes up."""
        ...

    def loss(
        self,
        token_ids: PaddedIds,
        targets: Float[Tensor, "b t"],
        *,
        embeds: Float[Tensor, "b s d"] | None = None,
    ) -> Float[Tensor, " b"]:
        """Return the loss of each row of framed ids against its target, shape (b,)."""
        ...


@final
@dataclass(frozen=True, eq=False)
class BoundTerm:
    """A term with the targets of a list of problems; an `EmbedLoss`.

    Attributes:
        term: The term.
        targets: One target vector per problem, shape (p, t).
        table: From the primary's tokens to this term's.
    """

    term: Term
    targets: Float[Tensor, "p t"]
    table: RetokenizationTable

    @property
    def name(self) -> str:
        """Name of the term."""
        return self.term.name

    @property
    def weight(self) -> float:
        """Weight of the term."""
        return self.term.weight

    @property
    def model(self) -> TextModel:
        """The secondary model."""
        return self.term.model

    @property
    def tokenizer(self) -> Any:
        """The secondary's tokenizer."""
        return self.term.model.tokenizer

    @property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The secondary's vocabulary."""
        return self.term.model.vocabulary

    @property
    def max_length(self) -> int:
        """Longest text in tokens of the secondary, special ones included, targets set aside."""
        reserved = self.term.reserve(self.targets) if isinstance(self.term, JointTerm) else 0
        return self.model.max_length - reserved

    def compare(
        self, outputs: Float[Tensor, "b o"], problems: Int[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """Return the loss of each output against the target of its problem, shape (b,)."""
        return self.term.compare(outputs, self.targets[problems].to(outputs.device))

    def loss(
        self,
        token_ids: PaddedIds,
        problems: Int[Tensor, " b"],
        *,
        embeds: Float[Tensor, "b s d"] | None = None,
    ) -> Float[Tensor, " b"]:
        """Return the loss of each row of framed ids, shape (b,); differentiable in `embeds`."""
        if isinstance(self.term, JointTerm):
            return self.term.loss(token_ids, self.targets[problems], embeds=embeds)
        return self.compare(self.model.outputs(token_ids, embeds=embeds), problems)

    @cached_property
    def stems(self) -> StemCache | None:
        """What is known of the texts that candidates extend, for as long as this object lives."""
        return self.model.start_cache() if isinstance(self.model, StemSharing) else None

    def _outputs(
        self, token_ids: PaddedIds, texts: Sequence[str], rows: Int[Tensor, " b"]
    ) -> Float[Tensor, "b o"]:
        """Return the model's outputs for framed ids that extend the texts `rows` points to."""
        if self.stems is None:
            return self.model.outputs(token_ids)
        tokenizer = self.model.tokenizer
        encoded = tokenizer.encode_batch(texts)
        begun = PaddedIds.from_lists([[*tokenizer.prefix_ids, *ids] for ids in encoded])
        return self.stems.outputs(token_ids, begun, rows)

    @torch.no_grad()
    def score(
        self,
        texts: Sequence[str],
        rows: Int[Tensor, " c"],
        tokens: Int[Tensor, " c"],
        problems: Int[Tensor, " c"],
    ) -> tuple[Float[Tensor, " c"], float]:
        """Return the exact loss of candidates, each a text with one primary token appended.

        Texts that are equal for this model are computed once, also across problems. A text that
        would leave this model no room for closing punctuation has an infinite loss.

        Args:
            texts: The texts to append to.
            rows: Index into `texts` of each candidate, shape (c,).
            tokens: Primary token appended, shape (c,).
            problems: Problem of each candidate, shape (c,).

        Returns:
            Losses, shape (c,), and the share of candidates whose ids came from the retokenisation
            table.
        """
        ids, share = self.table.extend(texts, rows, tokens)
        joint = isinstance(self.term, JointTerm)
        problem_of_text = problems if joint else torch.zeros_like(problems)
        keyed = torch.cat([ids.lengths[:, None], problem_of_text[:, None], ids.ids], dim=1)
        distinct, inverse = distinct_rows(keyed)
        fits = torch.nonzero(distinct[:, 0] <= self.max_length - END_ROOM).flatten()
        if not len(fits):
            return torch.full((len(tokens),), float("inf")), share
        texts_that_fit = PaddedIds(distinct[fits, 2:], distinct[fits, 0])
        if joint:
            alone = torch.full((len(distinct),), float("inf"))
            alone[fits] = self.loss(texts_that_fit, distinct[fits, 1]).float().cpu()
            return alone[inverse], share
        stem_of = torch.full((len(distinct),), len(texts)).scatter_reduce(0, inverse, rows, "amin")
        outputs = self._outputs(texts_that_fit, texts, stem_of[fits])
        row_of = torch.full((len(distinct),), -1).scatter(0, fits, torch.arange(len(fits)))
        kept = row_of[inverse] >= 0
        losses = torch.full((len(tokens),), float("inf"))
        inputs = outputs[row_of[inverse[kept]].to(outputs.device)]
        losses[kept] = self.compare(inputs, problems[kept]).float().cpu()
        return losses, share


@final
@dataclass(frozen=True)
class Evaluation:
    """The exact losses of one text.

    Attributes:
        loss: Sum of weight times term.
        terms: Unweighted loss of each term, by name.
    """

    loss: float
    terms: Mapping[str, float]


_IsEmbedLoss: type[EmbedLoss] = BoundTerm


@final
class Objective:
    """A weighted sum of terms.

    Args:
        terms: One `Fluency`, whose model is the primary, and any number of other terms with
            distinct names.

    Raises:
        ProblemError: If there is not exactly one `Fluency`, or two terms share a name.
    """

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
            raise ProblemError(
                f"Terms need distinct names, got {names}. Pass name=... to one of them."
            )
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

    def bind(self, problems: Sequence[Problem]) -> "BoundObjective":
        """Read the targets of all problems.

        Args:
            problems: The problems.

        Returns:
            The objective with its targets.

        Raises:
            ProblemError: If a problem lacks a target, or has one that no term asks for.
        """
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
        bound = []
        for term in self.terms:
            vectors = [term.read_target(p.targets[term.target]) for p in problems]
            # Continuations differ in length; no target vector holds -1 itself.
            targets = pad_sequence(vectors, batch_first=True, padding_value=-1.0)
            bound.append(BoundTerm(term, targets, self.table(term)))
        return BoundObjective(self, tuple(problems), tuple(bound))


@final
@dataclass(frozen=True, eq=False)
class BoundObjective:
    """An objective with the targets of its problems.

    Attributes:
        objective: The objective.
        problems: The problems, in order.
        terms: The terms other than fluency, with their targets.
    """

    objective: Objective
    problems: tuple[Problem, ...]
    terms: tuple[BoundTerm, ...]

    @cached_property
    def prefixes(self) -> PrefixCache:
        """The primary's next-token probabilities; what is known lives as long as this object."""
        return PrefixCache(self.objective.primary)

    def evaluate(
        self,
        texts: Sequence[str],
        problems: Sequence[int],
        *,
        fluency: Sequence[float] | None = None,
    ) -> list[Evaluation]:
        """Return the exact losses of whole texts, from the text alone.

        Args:
            texts: Texts, each beginning with the prefix of its problem.
            problems: Index of the problem of each text.
            fluency: Loss of the fluency term for each text, where a search knows it already.

        Returns:
            Total and terms of each text.
        """
        writer = self.objective.fluency
        if fluency is None:
            prefixes = [self.problems[p].prefix for p in problems]
            fluency = writer.evaluate(texts, prefixes)
        values = {writer.name: list(fluency)}
        index = torch.tensor(problems, dtype=torch.long)
        for term in self.terms:
            tokenizer = term.model.tokenizer
            ids = PaddedIds.from_lists(
                [tokenizer.frame(row) for row in tokenizer.encode_batch(list(texts))]
            )
            with torch.no_grad():
                values[term.name] = term.loss(ids, index).tolist()
        weights = self.objective.weights
        rows = [
            dict(zip(values, column, strict=True)) for column in zip(*values.values(), strict=True)
        ]
        return [Evaluation(sum(weights[n] * v for n, v in row.items()), row) for row in rows]
