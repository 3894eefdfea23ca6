"""A Hugging Face model with its tokenizer: loaded, frozen, measured, and run on batches of ids.

What all families share lies here once; what a family makes of its numbers lies in `causal_lm`,
`sentence`, `classifier` and `image_text`, each of which holds one `Pretrained`. Here is no loss and
no choice between families (`fuseprompt.models.hub`). Read next: `fuseprompt.models.sentence`.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fuseprompt.models.base import replaced_embeddings, vocabulary_of
from fuseprompt.models.batching import TOKENS_PER_PASS, PassSize, run_by_length
from fuseprompt.models.selftest import check_embeddings, check_output, describe_unusual
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer

#: Tokens that a model takes where neither its configuration nor its tokenizer names a limit.
UNLIMITED: Final = 100_000


@final
class Pretrained:
    """A frozen model and its tokenizer.

    Args:
        module: A Hugging Face model.
        tokenizer: Its tokenizer.
        name: The id or folder it came from.
        text_side: The part of `module` that embeds token ids, if that is not the whole.

    Raises:
        ModelError: If the model has no layer that embeds token ids, one with fewer rows than the
            tokenizer has tokens, or damaged weights.
        TokenizerError: If the tokenizer frames a text with the same special token twice.
    """

    def __init__(
        self, module: Any, tokenizer: Tokenizer, *, name: str = "", text_side: Any = None
    ) -> None:
        self.module = module.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.text_side = module if text_side is None else text_side
        check_embeddings(self.text_side, tokenizer, name=name)
        named = (tokenizer.max_length, count_positions(self.text_side))
        limits = [n for n in named if n is not None]
        self.max_length: int = min(limits, default=UNLIMITED)
        self.pass_size = PassSize(TOKENS_PER_PASS, self.device)
        self.notes: tuple[str, ...] = describe_unusual(
            self.text_side,
            tokenizer,
            max_length=self.max_length if limits else None,
        )

    @cached_property
    def vocabulary(self) -> Float[Tensor, "v d"]:
        """The embedding layer applied to every id, shape (v, d)."""
        return vocabulary_of(self.text_side)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.module.device
        return device

    def try_out(self, compute: Callable[[Int[Tensor, "b s"]], Float[Tensor, "..."]]) -> None:
        """Check that the answer to a short text is finite.

        Args:
            compute: From ids, shape (1, s), to anything.

        Raises:
            ModelError: If it is not.
        """
        ids = self.tokenizer.frame(self.tokenizer.encode("An image of a cat."))
        with torch.no_grad():
            output = compute(torch.tensor([ids], device=self.device))
        check_output(output, name=self.name)

    def outputs(
        self,
        compute: Callable[[Int[Tensor, "b s"]], Float[Tensor, "b o"]],
        token_ids: PaddedIds,
        *,
        embeds: Float[Tensor, "b s d"] | None = None,
        padded_to: int = 1,
    ) -> Float[Tensor, "b o"]:
        """Run a forward pass over framed ids, rows of equal length together.

        Args:
            compute: From ids of equal length, shape (b, s), to one vector per row.
            token_ids: Framed ids.
            embeds: Stand in for the ids' embeddings, shape (b, s, d); the result is differentiable
                in them and in nothing else.
            padded_to: Tokens that a row counts at least, so that costly passes stay small.

        Returns:
            One vector per row, shape (b, o), in fp32.
        """

        def forward(ids: Tensor, part: Tensor | None) -> Tensor:
            if part is None:
                with torch.no_grad():
                    return compute(ids)
            with replaced_embeddings(self.text_side, part):
                return compute(ids)

        return run_by_length(
            forward,
            token_ids,
            embeds=embeds,
            device=self.device,
            size=self.pass_size,
            padded_to=padded_to,
        )


def load_pretrained(
    path: str | Path, auto_class: Any, *, local_only: bool, device: torch.device | None
) -> tuple[Any, Tokenizer]:
    """Load a folder (or Hub id, when `local_only` is off) in fp32.

    Args:
        path: The folder or id.
        auto_class: One of transformers' Auto classes.
        local_only: Never ask the Hub.
        device: Where the weights go.

    Returns:
        The module and its tokenizer.
    """
    module = auto_class.from_pretrained(str(path), local_files_only=local_only, dtype=torch.float32)
    return module.to(device), Tokenizer.from_pretrained(path, local_only=local_only)


def count_positions(module: Any) -> int | None:
    """Return how many tokens a model has positions for, or `None` if its configuration names none.

    RoBERTa and its relatives count positions from the padding id, so the first rows of their table
    are never the position of a token; such a table has a padding row of its own.
    """
    positions: int | None = getattr(module.config, "max_position_embeddings", None)
    for name, layer in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(layer, nn.Embedding):
            unused = 0 if layer.padding_idx is None else layer.padding_idx + 1
            return layer.num_embeddings - unused
    return positions
