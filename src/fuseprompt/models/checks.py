"""What a model and its tokenizer must be before a search relies on them; all checks are cheap.

Whether two tokenizers fit together is not asked here (`fuseprompt.text.retokenize`), nor whether
keys and values of a prefix can be used again (`CausalLM.can_continue`, `TextTower.can_continue`).
Read next: `fuseprompt.models.pretrained`.
"""

from typing import Any

import torch
from torch import Tensor

from fuseprompt.errors import ModelError, TokenizerError
from fuseprompt.text.tokenizer import Tokenizer

#: The text on which models are tried out.
SAMPLE = "An image of a cat."


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Check that a tokenizer puts no special token twice at one side of a text.

    Raises:
        TokenizerError: If it does.
    """
    for side, ids in (("before", tokenizer.prefix_ids), ("after", tokenizer.suffix_ids)):
        if len(set(ids)) < len(ids):
            raise TokenizerError(
                f"{tokenizer.name}: it puts {tokenizer.decode(ids)!r} {side} a text, the same "
                "special token twice. Save it again with add_bos_token or the template, not both."
            )


def check_embeddings(module: Any, tokenizer: Tokenizer, *, name: str) -> None:
    """Check that a model has a matrix of token embeddings with a usable row for every token.

    Args:
        module: The part of the model that embeds token ids.
        tokenizer: Its tokenizer.
        name: What error messages call the model.

    Raises:
        ModelError: If there is no such layer, it has too few rows, or NaN among them.
    """
    try:
        weight = module.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):
        weight = None
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise ModelError(
            f"{name}: {type(module).__name__} has no layer that embeds token ids "
            "(get_input_embeddings), so no gradient can reach its tokens. Give a model that reads "
            "text as token ids."
        )
    num_tokens = max(tokenizer.ids_by_token.values()) + 1
    if num_tokens > weight.shape[0]:
        raise ModelError(
            f"{name}: the tokenizer has {num_tokens} tokens, but the model's matrix only "
            f"{weight.shape[0]} rows. Give the tokenizer that belongs to the model, or call "
            "resize_token_embeddings and train the new rows."
        )
    # One pass over a large matrix; which rows are bad is asked only if one may be.
    if bool(torch.isfinite(weight.detach().abs().sum())):
        return
    bad = torch.nonzero(~torch.isfinite(weight).all(dim=1)).flatten().tolist()
    if bad:
        raise ModelError(
            f"{name}: {len(bad)} rows of the embedding matrix hold NaN or infinity (first: id "
            f"{bad[0]}). Its weights are damaged: copy or convert them again."
        )


def check_output(output: Tensor, *, name: str) -> None:
    """Check that a model's answer to a plain text or picture is finite.

    Args:
        output: The answer.
        name: What the error message calls the model.

    Raises:
        ModelError: If there is NaN or infinity in it.
    """
    if not bool(torch.isfinite(output).all()):
        raise ModelError(
            f"{name}: the answer to a plain text holds NaN or infinity, so the weights are damaged "
            "or overflow in fp32. Copy or convert them again."
        )
