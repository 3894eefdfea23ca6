"""An objective with a planted text, which is the only one without a loss."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer
from tests import tiny

PLANTED = "an old dog and a cat are over the river"
START = "an old of and a cat with over the river"


class Reader:
    """A model that puts out its embeddings of all tokens, one after the other, at length 1."""

    max_length = tiny.MAX_LENGTH
    name = "reader"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        primary, generator = tiny.gpt2(), torch.Generator().manual_seed(0)
        self.vocabulary = torch.randn(tokenizer.vocab_size, 16, generator=generator)
        turned = primary.vocabulary @ torch.linalg.qr(self.vocabulary[:16]).Q
        # Words of one token in both models are related; those without a blank count least.
        texts = enumerate(primary.tokenizer.token_texts)
        for token, text in sorted(texts, key=lambda pair: pair[1].startswith(" ")):
            if len(ids := tokenizer.encode(text)) == 1:
                self.vocabulary[ids[0]] = turned[token]

    def outputs(self, token_ids: PaddedIds, *, embeds: Tensor | None = None) -> Tensor:
        rows = self.vocabulary[token_ids.ids] if embeds is None else embeds
        inside = torch.arange(rows.shape[1]) < token_ids.lengths[:, None]
        rows = rows * inside[..., None].to(rows)
        return normalize(pad(rows, (0, 0, 0, self.max_length - rows.shape[1])).flatten(1), dim=1)


@dataclass(frozen=True)
class Planted:
    """One minus the cosine of the outputs of a text and of the planted one."""

    model: Reader
    weight: float = 1.0
    name: str = "planted"
    target: str = "text"

    def encode_target(self, target: str) -> Tensor:
        tokenizer = self.model.tokenizer
        ids = tokenizer.add_special_tokens(tokenizer.encode(target))
        return self.model.outputs(PaddedIds.from_lists([ids]))[0]

    def compare(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 1.0 - (outputs * targets).sum(dim=-1)


def objective(tokenizer: Tokenizer | None = None, *, fluency: float = 0.0) -> Objective:
    """Return how near a text is to the planted one, in a WordPiece tokenizer's eyes by default."""
    reader = Reader(tokenizer or Tokenizer.from_hf(tiny.bert_tokenizer()))
    return Objective([Fluency(tiny.gpt2(), weight=fluency), Planted(reader)])


def problem(start: str | None = START, **more: str) -> Problem:
    return Problem("0", {"text": PLANTED}, start=start, **more)
