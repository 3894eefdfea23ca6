"""A term of the objective (`Term`), and the same with its problems' targets (`BoundTerm`).

A `BoundTerm` scores each distinct text once, and only from its last unchanged token on where the
model can. Fluency is no such term (`fuseprompt.objective.terms`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import ProblemError
from fuseprompt.models.base import TextModel
from fuseprompt.models.image_text import ClipModel
from fuseprompt.models.kv_cache import TowerCache
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable, distinct_rows, encode_whole

#: Outputs of texts that a term remembers: enough for a step of sixteen problems.
_MOST_OUTPUTS: Final = 4096

#: Tokens that a secondary keeps free for the punctuation that closes a sentence.
END_ROOM: Final = 2


@runtime_checkable
class Term(Protocol):
    """A summand of the objective that compares a text with a target."""

    @property
    def name(self) -> str:
        """Name in results."""

    @property
    def weight(self) -> float:
        """Factor of this term in the total."""

    @property
    def target(self) -> str:
        """Name of the target that each problem must have."""

    @property
    def model(self) -> TextModel:
        """The secondary model."""

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return a target as a vector; raise a `FuseError` if it cannot be one."""

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return the loss of each output against its target vector, differentiable in `outputs`."""


@runtime_checkable
class ProductTerm(Term, Protocol):
    """A term that reads of an output nothing but its products with a few directions."""

    def directions(self, targets: Float[Tensor, "b t"], width: int) -> Float[Tensor, "b k o"]:
        """Return the directions of targets, for outputs of this width."""

    def compare_products(
        self, products: Float[Tensor, "b k"], directions: Float[Tensor, "#b k o"]
    ) -> Float[Tensor, " b"]:
        """Return the loss of each output, given its products with the directions of its target."""


@runtime_checkable
class JointTerm(Term, Protocol):
    """A term whose model must see text and target together; its `compare` is never called."""

    def bind(self, targets: Float[Tensor, "p t"]) -> "JointLoss":
        """Return the loss against the targets of problems, which are -1 behind their ends."""


@runtime_checkable
class JointLoss(Protocol):
    """The loss of a `JointTerm`, with the targets of its problems."""

    @property
    def num_reserved(self) -> int:
        """Tokens of the model's length that the longest target takes."""

    def score(
        self,
        texts: Sequence[str],
        problems: Int[Tensor, " b"],
        begun: Sequence[tuple[str, int]] | None = None,
    ) -> Float[Tensor, " b"]:
        """Return the exact loss of each text, most of which share beginnings with those `begun`."""

    def loss(
        self,
        token_ids: PaddedIds,
        problems: Int[Tensor, " b"],
        *,
        embeds: Float[Tensor, "b s d"] | None = None,
    ) -> Float[Tensor, " b"]:
        """Return the loss of ids with special tokens, differentiable in `embeds`."""


@final
@dataclass(frozen=True, eq=False)
class BoundTerm:
    """A term with one target vector and one seed per problem; an `EmbedLoss`."""

    term: Term
    targets: Float[Tensor, "p t"]
    seeds: tuple[int, ...]
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

    @cached_property
    def joint(self) -> JointLoss | None:
        """The loss of a term whose model must see text and target together."""
        return self.term.bind(self.targets) if isinstance(self.term, JointTerm) else None

    @property
    def compares_outputs(self) -> bool:
        """Whether the loss is a function of one output per text."""
        return self.joint is None

    @property
    def only_exact(self) -> bool:
        """Whether proposals know nothing of this term, and only the best candidates get it."""
        return bool(getattr(self.term, "only_exact", False))

    @property
    def max_length(self) -> int:
        """Longest text in tokens, special ones included, targets set aside."""
        return self.model.max_length - (0 if self.joint is None else self.joint.num_reserved)

    def compare(
        self, outputs: Float[Tensor, "b o"], problems: Int[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """Return the loss of each output against the target of its problem."""
        return self.term.compare(outputs, self.targets.to(outputs.device)[problems])

    def loss(
        self,
        token_ids: PaddedIds,
        problems: Int[Tensor, " b"],
        *,
        embeds: Float[Tensor, "b s d"] | None = None,
    ) -> Float[Tensor, " b"]:
        """Return the loss of each row of ids with special tokens; differentiable in `embeds`."""
        if self.joint is not None:
            return self.joint.loss(token_ids, problems, embeds=embeds)
        return self.compare(self.model.outputs(token_ids, embeds=embeds), problems)

    @torch.no_grad()
    def evaluate(self, texts: Sequence[str], problems: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Return the loss of whole texts, each from the text alone; refuse those too long."""
        ids = encode_whole(self.tokenizer, texts)
        check_length(int(ids.ids.shape[1]), self.max_length, self.model.name)
        return self.loss(ids, problems) if self.joint is None else self.joint.score(texts, problems)

    @torch.no_grad()
    def score_texts(
        self, texts: Sequence[str], problems: Int[Tensor, " c"], origins: Sequence[str]
    ) -> Float[Tensor, " c"]:
        """Return exact losses of whole texts (inf: no room), which were made by edits of others."""
        # A tower reuses what a text shares with the one that it was made of.
        if self.joint is not None:
            return self._score_joint(texts, problems, origins, self.max_length)
        ids = encode_whole(self.tokenizer, texts)
        losses = torch.full((len(texts),), float("inf"))
        fits = torch.nonzero(ids.lengths <= self.max_length).flatten()
        if not len(fits):
            return losses
        first = {texts[i]: i for i in reversed(fits.tolist()) if texts[i] not in self.known}
        outputs: dict[str, Tensor] = dict(self.known)
        if first:
            new = ids[torch.tensor([*first.values()])]
            short = PaddedIds(new.ids[:, : int(new.lengths.max())], new.lengths)
            begun = list(dict.fromkeys(origins))
            number = {text: i for i, text in enumerate(begun)}
            rows = torch.tensor([number[origins[i]] for i in first.values()])
            outputs.update(zip(first, self._outputs(short, begun, rows), strict=True))
            self.remember(outputs)
        asked = torch.stack([outputs[texts[i]] for i in fits.tolist()])
        losses[fits] = self.compare(asked, problems[fits]).float().cpu()
        return losses

    @cached_property
    def known(self) -> dict[str, Float[Tensor, " o"]]:
        """The model's outputs for the last texts, those that were edited or that edits made."""
        return {}

    def remember(self, outputs: Mapping[str, Float[Tensor, " o"]]) -> None:
        """Keep the last of these outputs."""
        last = list(outputs.items())[-_MOST_OUTPUTS:]
        self.known.clear()
        self.known.update(last)

    @cached_property
    def prefixes(self) -> TowerCache | None:
        """What is known of the texts that candidates extend; lives as long as this object."""
        return self.model.start_cache() if isinstance(self.model, ClipModel) else None

    def _outputs(
        self, token_ids: PaddedIds, texts: Sequence[str], rows: Int[Tensor, " b"]
    ) -> Float[Tensor, "b o"]:
        """Return the model's outputs for whole ids that extend the texts `rows` points to."""
        if self.prefixes is None:
            # Edited or grown texts begin alike: a model that can reads what they share once.
            many = getattr(self.model, "outputs_of_many", self.model.outputs)
            outputs: Tensor = many(token_ids)
            return outputs
        tokenizer = self.model.tokenizer
        encoded = tokenizer.encode_batch(texts)
        begun = PaddedIds.from_lists([[*tokenizer.prefix_ids, *ids] for ids in encoded])
        return self.prefixes.outputs(token_ids, begun, rows)

    @torch.no_grad()
    def score(
        self,
        texts: Sequence[str],
        rows: Int[Tensor, " c"],
        tokens: Int[Tensor, " c"],
        problems: Int[Tensor, " c"],
    ) -> tuple[Float[Tensor, " c"], float]:
        """Return exact losses of texts + tokens (inf: no room to end), and the table's share."""
        if self.joint is not None:
            pieces, origins = self.table.primary.token_texts, [texts[r] for r in rows.tolist()]
            pairs = zip(origins, tokens.tolist(), strict=True)
            grown = [text + pieces[token] for text, token in pairs]
            return self._score_joint(grown, problems, origins, self.max_length - END_ROOM), 0.0
        ids, share = self.table.extend(texts, rows, tokens)
        keyed = torch.cat([ids.lengths[:, None], ids.ids], dim=1)
        distinct, inverse = distinct_rows(keyed)
        fits = torch.nonzero(distinct[:, 0] <= self.max_length - END_ROOM).flatten()
        if not len(fits):
            return torch.full((len(tokens),), float("inf")), share
        texts_that_fit = PaddedIds(distinct[fits, 1:], distinct[fits, 0])
        prefix_of = torch.full((len(distinct),), len(texts)).scatter_reduce(
            0, inverse, rows, "amin"
        )
        outputs = self._outputs(texts_that_fit, texts, prefix_of[fits])
        row_of = torch.full((len(distinct),), -1).scatter(0, fits, torch.arange(len(fits)))
        kept = row_of[inverse] >= 0
        losses = torch.full((len(tokens),), float("inf"))
        inputs = outputs[row_of[inverse[kept]].to(outputs.device)]
        losses[kept] = self.compare(inputs, problems[kept]).float().cpu()
        return losses, share

    def _score_joint(
        self,
        texts: Sequence[str],
        problems: Int[Tensor, " c"],
        origins: Sequence[str],
        limit: int,
    ) -> Float[Tensor, " c"]:
        """Return exact losses of whole texts of at most `limit` tokens (else inf), each once."""
        assert self.joint is not None
        keys = list(zip(texts, problems.tolist(), strict=True))
        distinct = list(dict.fromkeys(keys))
        lengths = encode_whole(self.tokenizer, [text for text, _ in distinct]).lengths.tolist()
        fits = [key for key, length in zip(distinct, lengths, strict=True) if length <= limit]
        losses = dict.fromkeys(distinct, float("inf"))
        if fits:
            begun = list(dict.fromkeys(zip(origins, problems.tolist(), strict=True)))
            among = torch.tensor([problem for _, problem in fits])
            found = self.joint.score([text for text, _ in fits], among, begun)
            losses.update(zip(fits, found.tolist(), strict=True))
        return torch.tensor([losses[key] for key in keys])


def check_length(length: int, limit: int, name: str) -> None:
    """Refuse a text of more tokens, special ones included, than a model takes."""
    if length > limit:
        raise ProblemError(
            f"A text has {length} tokens for {name}, which takes at most {limit}. Shorten it."
        )
