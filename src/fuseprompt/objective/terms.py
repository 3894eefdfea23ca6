"""The terms: fluency, and those that compare a text with a target (pictures, a label, texts).

A term is a frozen dataclass that meets `Term`, or `JointTerm` where its model must see text and
target together (`fuseprompt.objective.bound_term`); a user adds one in one file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import ProblemError
from fuseprompt.models.base import CausalModel, TextModel
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.models.image_text import ImageTextModel
from fuseprompt.models.images import open_image
from fuseprompt.text.retokenize import PaddedIds


@final
@dataclass(frozen=True)
class ImageText:
    """One minus the cosine of text and picture, range [0, 2], no unit.

    The target is a picture as `open_image` takes it (path, bytes, Pillow image or array), or a list
    of these, which counts as the mean of their losses: one text for all of them.
    """

    model: ImageTextModel
    weight: float = 1.0
    name: str = "image"
    target: str = "image"

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the mean of the normalised features of the pictures."""
        pictures = list(target) if isinstance(target, list | tuple) else [target]
        if not pictures:
            raise ProblemError(
                f"Term {self.name!r}: got an empty list, expected a picture or several."
            )
        images = [open_image(picture) for picture in pictures]
        # Not normalised again: the loss is then exactly the mean over the pictures.
        return self.model.image_features(images).mean(dim=0).cpu()

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return 1 - cosine."""
        return 1.0 - (outputs * targets).sum(dim=-1)


@final
@dataclass(frozen=True)
class TextSimilarity:
    """One minus the cosine of the text and a target text, range [0, 2], no unit."""

    model: SentenceEncoder
    weight: float = 1.0
    name: str = "similarity"
    target: str = "text"

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the normalised features of the text."""
        text = _check_text(self.name, target, self.model)
        return self.model.encode([text])[0].cpu()

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return 1 - cosine."""
        return 1.0 - (outputs * targets).sum(dim=-1)


@final
@dataclass(frozen=True)
class Label:
    """Cross-entropy to a class given by name (in any case), in nats, range [0, inf).

    The logits are divided by `temperature` (as Guo et al., 2017, do to calibrate). At 1 the loss is
    flat wherever the classifier is sure, so a search takes the cheapest word that makes it sure;
    and steep where it is not, so a search takes the first one that comes.
    """

    model: Classifier
    weight: float = 1.0
    name: str = "sentiment"
    target: str = "sentiment"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < float("inf"):
            raise ProblemError(
                f"Label {self.name!r}: temperature must be a finite number above 0, was: "
                f"{self.temperature}."
            )

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the class as a one-hot vector."""
        names = [label.lower() for label in self.model.labels]
        if str(target).lower() not in names:
            raise ProblemError(
                f"{self.model.name}: no label {target!r}; its labels are {list(self.model.labels)}."
            )
        index = torch.tensor(names.index(str(target).lower()))
        return torch.nn.functional.one_hot(index, len(names)).float()

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return the cross-entropy."""
        return -(torch.log_softmax(outputs / self.temperature, dim=-1) * targets).sum(dim=-1)


@final
@dataclass(frozen=True)
class Continuation:
    """How unlikely a given continuation is after the text, in nats per token of it, range [0, inf).

    For prompt discovery: find the text after which the model goes on as wanted. The target begins
    with its blank; its tokens are those that it has after a word.
    """

    model: CausalLM
    weight: float = 1.0
    name: str = "continuation"
    target: str = "continuation"

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the continuation's token ids as numbers."""
        tokenizer = self.model.tokenizer
        text = _check_text(self.name, target, self.model)
        word, whole = tokenizer.encode("a"), tokenizer.encode(f"a{text}")
        if not text.strip() or whole[: len(word)] != word:
            raise ProblemError(
                f"Term {self.name!r}: {target!r} cannot follow a text. Expected a continuation "
                "that begins with a blank or a line break, such as ' Paris'."
            )
        ids = whole[len(word) :]
        if len(ids) > self.model.max_length // 2:
            raise ProblemError(
                f"Term {self.name!r}: the continuation has {len(ids)} tokens, {self.model.name} "
                f"takes {self.model.max_length} with the text. Shorten it."
            )
        return torch.tensor(ids, dtype=torch.float32)

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Refuse: a continuation's likelihood is no function of one output per text."""
        raise ProblemError(
            f"Term {self.name!r} scores text and continuation together: no output stands for the "
            "text alone. Call `loss`."
        )

    def loss(
        self,
        token_ids: PaddedIds,
        targets: Float[Tensor, "b t"],
        *,
        embeds: Float[Tensor, "b s d"] | None = None,
    ) -> Float[Tensor, " b"]:
        """Return the mean negative log-likelihood of each continuation."""
        lengths = (targets >= 0).sum(dim=1)
        following = PaddedIds(targets.clamp_min(0).long(), lengths)
        return self.model.continuation_nll(token_ids, following, embeds=embeds)


def _check_text(term: str, target: Any, model: TextModel) -> str:
    """Return a target that is a text and that a model can read."""
    if not isinstance(target, str):
        raise ProblemError(f"Term {term!r}: expected a text, got {target!r}.")
    tokenizer = model.tokenizer
    if control := [t for t in tokenizer.special_texts if t in target]:
        raise ProblemError(
            f"Term {term!r}: the text has the control token {control[0]!r} of {model.name}. "
            "Leave it out."
        )
    length = len(tokenizer.encode(target)) + tokenizer.num_special
    check_length(length, model.max_length, model.name)
    return target


@final
@dataclass(frozen=True)
class Fluency:
    """Mean negative log-likelihood of the tokens after the prefix and of the text's end, in nats.

    The end is the event that an end-of-text token, or one that begins with a newline, follows. The
    sum is divided by tokens + 1, or kept whole without `per_token` (then short texts win). Range
    [0, inf). Without a prefix the first token counts only after the tokenizer's BOS or a prompt, as
    a model may have (`CausalLM.prompted`).
    """

    model: CausalModel
    weight: float = 1.0
    name: str = "fluency"
    per_token: bool = True

    def reduce(
        self, total: Float[Tensor, "..."], count: Int[Tensor, "..."]
    ) -> Float[Tensor, "..."]:
        """Return the loss of texts from summed nats and the number of tokens summed over."""
        return total / count if self.per_token else total

    def evaluate(self, texts: Sequence[str], prefixes: Sequence[str]) -> list[float]:
        """Return the loss of each text, whose first characters are its prefix."""
        tokenizer = self.model.tokenizer
        ids = tokenizer.encode_batch(list(texts))
        longest = max(map(len, ids), default=0) + tokenizer.num_special
        check_length(longest, self.model.max_length, self.model.name)
        given = [len(g) for g in tokenizer.encode_batch(list(prefixes))]
        return [
            float(self.reduce(nll.double().sum(), torch.tensor(len(nll))))
            for nll in self.model.nll(ids, given)
        ]


def check_length(length: int, limit: int, name: str) -> None:
    """Refuse a text of more tokens, special ones included, than a model takes."""
    if length > limit:
        raise ProblemError(
            f"A text has {length} tokens for {name}, which takes at most {limit}. Shorten it."
        )
