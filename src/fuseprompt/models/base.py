"""Protocols of models, and the hook where gradients enter.

`CausalModel` writes (the primary), `TextModel` reads (a secondary), `EmbedLoss` is all that a
proposal sees of a term. No family of models is named here.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fuseprompt.text.retokenize import PaddedIds, concatenate
from fuseprompt.text.tokenizer import Tokenizer

#: Keys and values of every layer, each of shape (b, heads, s, d): what a causal model made of rows
#: of tokens, and all that later tokens need of them. Never changed, only selected from.
KeyValues = tuple[tuple[Tensor, Tensor], ...]

#: Texts that are padded to one another.
_TEXTS_PER_PASS: Final = 512


@runtime_checkable
class HasVocabulary(Protocol):
    """A model, or the loss of one, with tokens and a vector for each."""

    @property
    def name(self) -> str:
        """Name of the term, or the id or folder that the model was loaded from."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to the model's ids and back."""

    @property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The embedding *layer* applied to every id (Gemma scales inside it), shape (v, d)."""


@runtime_checkable
class TextModel(HasVocabulary, Protocol):
    """A secondary model: text in, one vector out (features, or logits)."""

    @property
    def max_length(self) -> int:
        """Longest text in tokens, special ones included."""

    def outputs(
        self, token_ids: PaddedIds, *, embeds: Float[Tensor, "b s d"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Return one vector per row of ids, special tokens included; `embeds` replace embeddings.

        A row's result does not depend on its neighbours or on padding. Gradients flow to `embeds`
        and nowhere else.
        """


@runtime_checkable
class EmbedLoss(HasVocabulary, Protocol):
    """A loss of a term, bound to its problems: all that `fuseprompt.proposals` sees of a term."""

    @property
    def seeds(self) -> Sequence[int]:
        """Seed of each problem, for what is drawn at random."""

    @property
    def model(self) -> TextModel:
        """The secondary model, for tables that are made once for a model."""

    @property
    def compares_outputs(self) -> bool:
        """Whether the loss is a function of one model output per text, which `compare` takes."""

    def compare(
        self, outputs: Float[Tensor, "b o"], problems: Int[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """Return the loss of each model output against the target of its problem, shape (b,)."""

    def loss(
        self,
        token_ids: PaddedIds,
        problems: Int[Tensor, " b"],
        *,
        embeds: Float[Tensor, "b s d"] | None = None,
    ) -> Float[Tensor, " b"]:
        """Return `compare(model.outputs(...))`, or what stands for it, shape (b,)."""


@runtime_checkable
class CausalModel(HasVocabulary, Protocol):
    """The primary: a causal language model."""

    @property
    def max_length(self) -> int:
        """Longest text in tokens."""

    @property
    def begin_ids(self) -> tuple[int, ...]:
        """Ids before every text, not scored: BOS, an end-of-text token, or a prompt."""

    @property
    def end_ids(self) -> Int[Tensor, " e"]:
        """Tokens that end a text: end-of-text tokens and those that begin with a newline."""

    def next_log_probs(self, token_ids: Int[Tensor, "b s"]) -> Float[Tensor, "b v"]:
        """Return the log-probabilities of the token after each row; rows have equal length."""

    def nll(
        self, token_ids: Sequence[Sequence[int]], num_given: Sequence[int]
    ) -> list[Float[Tensor, " n"]]:
        """Return the negative log-likelihood of each token that is not given, then of the end."""


def count_bytes(key_values: Iterable[tuple[Tensor, Tensor]]) -> int:
    """Return how much memory keys and values take up."""
    return sum(t.numel() * t.element_size() for pair in key_values for t in pair)


def prepend_beginning(model: CausalModel, rows: PaddedIds) -> PaddedIds:
    """Return rows of ids with what comes before every text; they have no special tokens before.

    No row of the result is empty, since a model needs something to predict from: where there is
    nothing else, the end of another text is put there.
    """
    begin = torch.tensor(model.begin_ids, dtype=torch.long).expand(len(rows), -1)
    lengths = torch.full_like(rows.lengths, begin.shape[1])
    if not model.begin_ids:
        lengths = (rows.lengths == 0).long()
        begin = model.end_ids[:1] * lengths[:, None]
    return concatenate(PaddedIds(begin, lengths), rows)


def outputs_of(model: TextModel, texts: Sequence[str]) -> Float[Tensor, "n o"]:
    """Return the output for each text; a long one is cut, its special tokens are kept."""
    tokenizer = model.tokenizer
    room = model.max_length - tokenizer.num_special
    rows = [tokenizer.add_special_tokens(ids[:room]) for ids in tokenizer.encode_batch(list(texts))]
    with torch.no_grad():
        blocks = [
            model.outputs(PaddedIds.from_lists(rows[start : start + _TEXTS_PER_PASS])).float().cpu()
            for start in range(0, len(rows), _TEXTS_PER_PASS)
        ]
    return torch.cat(blocks)


@contextmanager
def replaced_embeddings(module: nn.Module, embeds: Float[Tensor, "b s d"]) -> Iterator[None]:
    """Make the input-embedding layer of `module` answer with `embeds`, whatever ids it gets.

    The hook works for every family, also for those whose `forward` takes no `inputs_embeds`, and
    keeps what a model derives from the ids themselves (positions, the place that is pooled).
    """
    layer: Any = module.get_input_embeddings()  # type: ignore[operator]

    def answer(_layer: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
        return embeds.to(output.dtype)

    handle = layer.register_forward_hook(answer)
    try:
        yield
    finally:
        handle.remove()


def vocabulary_of(module: nn.Module) -> Float[Tensor, "v d"]:
    """Return the input-embedding layer applied to every id it has, without gradient."""
    layer: Any = module.get_input_embeddings()  # type: ignore[operator]
    weight: Tensor = layer.weight
    with torch.no_grad():
        rows: Tensor = layer(torch.arange(weight.shape[0], device=weight.device)).detach()
        return rows.float() if rows.dtype == torch.bfloat16 else rows
