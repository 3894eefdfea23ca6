"""A loss whose gradient is known by hand, and two of a tiny model, all as `EmbedLoss`."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fuseprompt.models.base import TextModel
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Contrast, Fluency, TextSimilarity
from fuseprompt.proposals.base import Positions
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.text.tokenizer import Tokenizer
from tests.tiny import gpt2, sentence_encoder

#: Two positions of one problem, one at the end of a text and one inside.
POSITIONS = Positions(("a photo of a", "the"), ("", " sleeps on a bed."), torch.tensor([0, 0]))


@dataclass
class LinearModel:
    """A text model whose output is the sum over positions of a linear map of the embeddings."""

    tokenizer: Tokenizer
    name: str = "linear"
    max_length: int = 64
    width: int = 6
    seed: int = 0
    num_calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.vocabulary = torch.randn(self.tokenizer.vocab_size, self.width, generator=generator)
        self.matrix = torch.randn(self.width, 3, generator=generator)

    def outputs(self, token_ids: PaddedIds, *, embeds: Tensor | None = None) -> Tensor:
        """Return the sum over each row's own positions, shape (b, 3)."""
        self.num_calls += 1
        embeds = self.vocabulary[token_ids.ids] if embeds is None else embeds
        inside = torch.arange(embeds.shape[1]) < token_ids.lengths[:, None]
        return ((embeds * inside[..., None]) @ self.matrix).sum(1)


@dataclass
class DotLoss:
    """The output of a text model times a target per problem."""

    model: TextModel
    targets: Tensor
    name: str = "dot"
    compares_outputs: bool = True

    @property
    def seeds(self) -> tuple[int, ...]:
        """A seed per problem."""
        return tuple(range(len(self.targets)))

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.model.tokenizer

    @property
    def vocabulary(self) -> Tensor:
        """The model's vocabulary."""
        return self.model.vocabulary

    def compare(self, outputs: Tensor, problems: Tensor) -> Tensor:
        """Return output . target, shape (b,)."""
        return (outputs * self.targets[problems]).sum(-1)

    def loss(
        self, token_ids: PaddedIds, problems: Tensor, *, embeds: Tensor | None = None
    ) -> Tensor:
        """Return the loss of each row, shape (b,)."""
        return self.compare(self.model.outputs(token_ids, embeds=embeds), problems)


def linear_loss(num_problems: int = 2) -> DotLoss:
    """Return a loss that is linear in the embeddings."""
    model = LinearModel(sentence_encoder().tokenizer)
    generator = torch.Generator().manual_seed(1)
    return DotLoss(model, torch.randn(num_problems, 3, generator=generator), name="linear")


def similarity_loss(texts: tuple[str, ...] = ("a cat sleeps", "a happy dog")) -> DotLoss:
    """Return minus the cosine to target texts, in the tiny sentence encoder."""
    return DotLoss(sentence_encoder(), -sentence_encoder().encode(list(texts)), name="similarity")


def bound_term() -> BoundTerm:
    """Return a real term with one problem."""
    objective = Objective([Fluency(gpt2()), TextSimilarity(sentence_encoder())])
    return objective.bind([Problem("0", {"text": "a happy dog"})]).terms[0]


def table_for(loss: DotLoss) -> RetokenizationTable:
    """Return the table from the tiny primary to a loss."""
    return RetokenizationTable(gpt2().tokenizer, loss.tokenizer)


def initial_tokens(table: RetokenizationTable) -> Tensor:
    """Return all tokens of the primary that are new words."""
    return torch.nonzero(table.word_initial).flatten()


def exact(loss: DotLoss, texts: list[str], problems: list[int]) -> Tensor:
    """Return the loss of whole texts."""
    tokenizer = loss.tokenizer
    ids = PaddedIds.from_lists([tokenizer.add_special_tokens(tokenizer.encode(t)) for t in texts])
    with torch.no_grad():
        return loss.loss(ids, torch.tensor(problems))


def text_output(loss: DotLoss, text: str) -> Tensor:
    """Return the model's output for a whole text, shape (o,)."""
    ids = loss.tokenizer.add_special_tokens(loss.tokenizer.encode(text))
    return loss.model.outputs(PaddedIds.from_lists([ids]))[0]


def contrast_loss() -> BoundTerm:
    """Return the loss of a contrast with two groups, beside a problem that has three."""
    term = Contrast(sentence_encoder(), temperature=0.2)
    objective = Objective([Fluency(gpt2()), term])
    groups = [["a cat"], ["the museum", "a dog"], ["people are walking"]]
    targets = [{"to": ["two people"], "from": groups[:2]}, {"to": ["a"], "from": groups}]
    problems = [Problem(str(i), {"contrast": target}) for i, target in enumerate(targets)]
    return objective.bind(problems).terms[0]
