"""The terms: fluency, and those that compare a text with a target (pictures, a label, texts).

A term is a frozen dataclass that meets `Term`, or `JointTerm` where its model must see text and
target together (`fuseprompt.objective.bound_term`); a user adds one in one file.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import ProblemError
from fuseprompt.models.base import CausalModel, TextModel
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.models.image_text import ImageTextModel
from fuseprompt.models.images import open_image
from fuseprompt.objective.bound_term import Term, check_length
from fuseprompt.objective.problem import Problem
from fuseprompt.text.retokenize import encode_whole

#: Weight of what a text is more fluent than is enough.
_BEYOND_ENOUGH: Final = 0.3


@final
@dataclass(frozen=True)
class ImageText:
    """One minus the cosine of text and picture, range [0, 2], no unit.

    The target is a picture as `open_image` takes it (path, bytes, Pillow image or array), or a
    vector (numbers in a row, of the width of the model's features), of which only the direction
    counts; or a list of these, which counts as the mean of their losses: one text for all of them.
    """

    model: ImageTextModel
    weight: float = 1.0
    name: str = "image"
    target: str = "image"

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the mean of the normalised features of the pictures."""
        several = isinstance(target, list | tuple) and not is_vector(target)
        pictures = list(target) if several else [target]
        if not pictures:
            raise ProblemError(
                f"Term {self.name!r}: got an empty list, expected a picture or several."
            )
        vectors = [_direction(self, p) if is_vector(p) else None for p in pictures]
        images = [open_image(p) for p, v in zip(pictures, vectors, strict=True) if v is None]
        seen = iter(self.model.image_features(images).cpu()) if images else iter(())
        # Not normalised again: the loss is then exactly the mean over the pictures.
        return torch.stack([next(seen) if v is None else v for v in vectors]).mean(dim=0)

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return 1 - cosine."""
        return 1.0 - (outputs * targets).sum(dim=-1)


@final
@dataclass(frozen=True)
class TextSimilarity:
    """One minus the cosine of the text and a target, range [0, 2], no unit.

    The target is a text, or a vector (numbers in a row, of the width of the model's features), of
    which only the direction counts. The model is a `SentenceEncoder`, or another whose outputs have
    length 1.
    """

    model: TextModel
    weight: float = 1.0
    name: str = "similarity"
    target: str = "text"

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the normalised features of the text, or the direction of the vector."""
        return _direction(self, target) if is_vector(target) else _read_texts(self, [target])[0]

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return 1 - cosine."""
        return 1.0 - (outputs * targets).sum(dim=-1)


@final
@dataclass(frozen=True)
class Label:
    """Cross-entropy to a class given by name (in any case), in nats, range [0, inf).

    The target "not negative" asks for any other class, unless one is called so itself: -log(1 - p),
    p being the probability of the class. The logits are divided by `temperature` (as Guo et al.,
    2017, do to calibrate). At 1 the loss is flat wherever the classifier is sure, so a search takes
    the cheapest word that makes it sure; and steep where it is not, so a search takes the first one
    that comes.
    """

    model: Classifier
    weight: float = 1.0
    name: str = "sentiment"
    target: str = "sentiment"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check_temperature(self.name, self.temperature)

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return 1 for each class that is right, 0 for the others."""
        names = [label.lower() for label in self.model.labels]
        wanted = str(target).lower()
        # A class may itself be called "not toxic".
        is_negated = wanted not in names and wanted.startswith("not ")
        wanted = wanted.removeprefix("not ").strip() if is_negated else wanted
        if wanted not in names:
            raise ProblemError(
                f"{self.model.name}: no label {target!r}; its labels are "
                f"{list(self.model.labels)}, and 'not' before one asks for any other."
            )
        is_right = torch.nn.functional.one_hot(torch.tensor(names.index(wanted)), len(names))
        return (1 - is_right if is_negated else is_right).float()

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return -log of the probability of the classes that are right."""
        # Summed over the others: 1 - p is 0 long before the loss is infinite.
        log_probs = torch.log_softmax(outputs / self.temperature, dim=-1)
        return -log_probs.masked_fill(targets == 0, -float("inf")).logsumexp(dim=-1)


@final
@dataclass(frozen=True)
class Contrast:
    """How much nearer a text is to some pictures, texts or vectors than to others, in nats.

    The target is `{"to": [...], "from": [...]}`. Each group counts by the mean of the text's
    cosines with its members, and the loss is the cross-entropy of the softmax over the groups of
    these means divided by `temperature`: with one group on each side log(1 + exp((f - t) / T)),
    range (0, 2 / T + 0.7). With a list of lists in "from" each is a group, and those nearest to the
    text count most. A member is a text, a picture (a `Path`, bytes, a Pillow image or an array), or
    a vector of the width of the model's features, of which only the direction counts.
    """

    model: ImageTextModel | SentenceEncoder
    weight: float = 1.0
    name: str = "contrast"
    target: str = "contrast"
    temperature: float = 0.05

    def __post_init__(self) -> None:
        _check_temperature(self.name, self.temperature)

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the mean features of all groups, that of "to" first, one after the other."""
        sides = {"to", "from"}
        if (
            not isinstance(target, Mapping)
            or set(target) != sides
            or not all(_is_several(target[side]) for side in sides)
        ):
            raise ProblemError(
                f'Term {self.name!r}: expected {{"to": [...], "from": [...]}}, got {target!r}.'
            )
        others = list(target["from"])
        if not others or not all(map(_is_several, others)):
            others = [target["from"]]
        groups = [list(target["to"]), *map(list, others)]
        if not all(groups):
            raise ProblemError(
                f'Term {self.name!r}: "to" and "from" need a member each, got '
                f"{[len(group) for group in groups]} members."
            )
        width = count_outputs(self.model)
        return torch.cat([self._features(group, width).mean(dim=0) for group in groups])

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return the cross-entropy to the first group."""
        groups = self.directions(targets, outputs.shape[1])
        return self.compare_products(torch.einsum("bo,bgo->bg", outputs, groups), groups)

    def directions(self, targets: Float[Tensor, "b t"], width: int) -> Float[Tensor, "b g o"]:
        """Return the mean features of each group."""
        return targets.view(len(targets), -1, width)

    def compare_products(
        self, products: Float[Tensor, "b g"], directions: Float[Tensor, "#b g o"]
    ) -> Float[Tensor, " b"]:
        """Return the cross-entropy to the first group, given the mean cosine with each."""
        logits = products / self.temperature
        # Where problems differ in their number of groups: no mean of unit vectors is all -1.
        logits = logits.masked_fill((directions == -1.0).all(dim=-1), -float("inf"))
        return logits.logsumexp(dim=-1) - logits[:, 0]

    def _features(self, members: Sequence[Any], width: int) -> Float[Tensor, "n o"]:
        """Return the normalised features of each member; texts are read together."""
        texts = [m for m in members if isinstance(m, str)]
        if files := [text for text in texts if os.path.isfile(text)]:
            raise ProblemError(
                f"Term {self.name!r}: {files[0]!r} is a text here, and a file. Pass "
                "Path(...) for a picture."
            )
        read = iter(_read_texts(self, texts)) if texts else iter(())
        rows = []
        for member in members:
            if isinstance(member, str):
                rows.append(next(read))
            elif is_vector(member):
                rows.append(_direction(self, member, width))
            elif isinstance(self.model, ImageTextModel):
                rows.append(self.model.image_features([open_image(member)])[0].cpu())
            else:
                raise ProblemError(
                    f"Term {self.name!r}: {self.model.name} sees no pictures; expected a text or a "
                    f"vector, got {type(member).__name__}."
                )
        return torch.stack(rows)


def is_vector(target: Any) -> bool:
    """Return whether a target is numbers in a row."""
    if isinstance(target, Tensor | np.ndarray):
        return target.ndim == 1
    return isinstance(target, list | tuple) and bool(target) and isinstance(target[0], Real)


def _is_several(target: Any) -> bool:
    """Return whether a target is a list or the rows of a tensor; an array may be a picture."""
    if isinstance(target, Tensor):
        return target.ndim > 1
    return isinstance(target, list | tuple) and not is_vector(target)


def _direction(
    term: ImageText | TextSimilarity | Contrast, target: Any, width: int | None = None
) -> Float[Tensor, " o"]:
    """Return a vector of a model's outputs, `width` numbers, with length 1."""
    vector = torch.as_tensor(target, dtype=torch.float32).detach().cpu()
    width = count_outputs(term.model) if width is None else width
    length = float(vector.norm())
    if len(vector) != width or not 0.0 < length < float("inf"):
        raise ProblemError(
            f"Term {term.name!r}: got a vector of {len(vector)} numbers and length {length:g}; the "
            f"features of {term.model.name} have {width} numbers and a finite length above 0."
        )
    return vector / length


def _read_texts(term: Term, texts: Sequence[Any]) -> Float[Tensor, "n o"]:
    """Return the features of target texts."""
    return _read(term.model, [check_text(term.name, t, term.model) for t in texts])


def _read(model: TextModel, texts: list[str]) -> Float[Tensor, "n o"]:
    return model.outputs(encode_whole(model.tokenizer, texts)).cpu()


def count_outputs(model: TextModel) -> int:
    """Return how wide the outputs of a model are, which it is asked for a short text."""
    return int(_read(model, ["a cat"]).shape[1])


def _check_temperature(name: str, temperature: float) -> None:
    if not 0.0 < temperature < float("inf"):
        raise ProblemError(
            f"Term {name!r}: temperature must be a finite number above 0, was: {temperature}."
        )


def check_text(term: str, target: Any, model: TextModel) -> str:
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
    [0, inf). Without a prefix the first token counts where the model reads something before it:
    BOS, the end-of-text token of another text, or a prompt (`CausalLM.prompted`).

    What a text is more fluent than `enough` counts by a part only, so that other terms come first.
    """

    model: CausalModel
    weight: float = 1.0
    name: str = "fluency"
    per_token: bool = True
    enough: float = 0.0

    def reduce(
        self, total: Float[Tensor, "..."], count: Int[Tensor, "..."]
    ) -> Float[Tensor, "..."]:
        """Return the loss of texts from summed nats and the number of tokens summed over."""
        loss = total / count if self.per_token else total
        if not self.enough:  # No loss is below 0.
            return loss
        return torch.maximum(loss, self.enough + _BEYOND_ENOUGH * (loss - self.enough))

    def evaluate(self, texts: Sequence[str], problems: Sequence[Problem]) -> list[float]:
        """Return the loss of each text, whose first characters are the prefix of its problem."""
        nll = self.token_nll(texts, problems)
        return [float(self.reduce(each.sum(), torch.tensor(len(each)))) for each in nll]

    def token_nll(
        self, texts: Sequence[str], problems: Sequence[Problem]
    ) -> list[Float[Tensor, " n"]]:
        """Return the nats of each token after the prefix, then those of the end."""
        encode = self.model.tokenizer.encode_batch
        given, ids = encode([p.prefix for p in problems]), encode(list(texts))
        left = encode([p.around[0] for p in problems])
        right = encode([p.around[1] for p in problems])
        rows = [[*b, *own, *a[:1]] for b, own, a in zip(left, ids, right, strict=True)]
        longest = max(map(len, rows), default=0) + self.model.tokenizer.num_special
        check_length(longest, self.model.max_length, self.model.name)
        nll: list[Tensor] = [torch.empty(0)] * len(rows)
        for before in dict.fromkeys(map(tuple, left)):  # Texts of one template are read together.
            same = [i for i, ids in enumerate(left) if tuple(ids) == before]
            counted = [len(before) + len(given[i]) for i in same]
            for i, one in zip(same, self.model.nll([rows[i] for i in same], counted), strict=True):
                nll[i] = one
        # What follows in the template stands for the end of the text.
        ended = zip(nll, right, strict=True)
        return [(each[:-1] if after else each).double() for each, after in ended]
