"""What every model and tokenizer is asked when it is loaded, before a search relies on it.

`check_tokenizer` and `check_model` return notes on what is unusual (a model shows them as `notes`)
and refuse what cannot work. Both are cheap; what the tokenizer answered is remembered under its
fingerprint. Whether two tokenizers fit together is not asked here (`fuseprompt.text.retokenize`).
Read next: `fuseprompt.models.pretrained`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from fuseprompt.cache import read_note, write_note
from fuseprompt.errors import ModelError, TokenizerError
from fuseprompt.text.tokenizer import Tokenizer

#: Texts on which tokenizers differ: blanks, case, accents, scripts, emoji, digits, punctuation,
#: special tokens of several families.
HOSTILE: Final = (
    "a", " a", "a ", "a  b", "a\tb", "a\nb", "Ab aB", "don't", "U.S.A.", "a , b . c !", "1,234.5",
    "caf\u00e9", "cafe\u0301", "\u65e5\u672c\u8a9e", "\u0414\u043e\u043c", "\U0001f44d\U0001f3fd",
    "a\u00a0b", "x_y-z/w", "(a) \"b\" 'c'", "<s>a</s>", "<|endoftext|>", "[SEP]", "http://a.b/c?d=1",
)  # fmt: skip

#: Raised when the questions change, so that old answers are not used.
_VERSION: Final = 1


@final
@dataclass(frozen=True)
class TokenizerFacts:
    """What a tokenizer does with the hostile texts.

    Attributes:
        num_tokens: Highest id plus one.
        changed: Hostile texts that do not come back from encoding and decoding.
        keeps_leading_blank: Whether a blank at the start of a text makes other ids.
        joins_punctuation: Whether decoding removes blanks before punctuation.
        num_added: Added tokens that are no special tokens.
    """

    num_tokens: int
    changed: tuple[str, ...]
    keeps_leading_blank: bool
    joins_punctuation: bool
    num_added: int


def check_tokenizer(tokenizer: Tokenizer) -> TokenizerFacts:
    """Ask a tokenizer, or read what it answered before.

    Args:
        tokenizer: The tokenizer.

    Returns:
        What it does.

    Raises:
        TokenizerError: If it puts a special token twice before or after a text, or gives no ids.
    """
    for side, ids in (("before", tokenizer.prefix_ids), ("after", tokenizer.suffix_ids)):
        if len(set(ids)) < len(ids):
            raise TokenizerError(
                f"{tokenizer.name}: it puts {tokenizer.decode(ids)!r} {side} a text, the same "
                "special token twice. Save it again with add_bos_token or the template, not both."
            )
    key = f"{_VERSION} {tokenizer.fingerprint}"
    noted = read_note("tokenizer", key)
    if noted is not None:
        try:
            return TokenizerFacts(**{**noted, "changed": tuple(noted["changed"])})
        except (KeyError, TypeError):
            pass  # A note of another make: ask again.
    facts = _ask(tokenizer)
    write_note("tokenizer", key, asdict(facts))
    return facts


def _ask(tokenizer: Tokenizer) -> TokenizerFacts:
    encoded = tokenizer.encode_batch(HOSTILE)
    if not any(encoded):
        raise TokenizerError(
            f"{tokenizer.name}: it gives no token for any test text. Copy its tokenizer.json again."
        )
    decoded = tokenizer.decode_batch(encoded)
    spaced = tokenizer.decode(tokenizer.encode("a , b ."))
    return TokenizerFacts(
        num_tokens=max(tokenizer.ids_by_token.values()) + 1,
        changed=tuple(t for t, back in zip(HOSTILE, decoded, strict=True) if t != back),
        keeps_leading_blank=tokenizer.encode("a") != tokenizer.encode(" a"),
        joins_punctuation="," in spaced and " ," not in spaced,
        num_added=tokenizer.num_added,
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
    weight = embedding_weight(module, name=name)
    num_tokens = check_tokenizer(tokenizer).num_tokens
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


def embedding_weight(module: Any, *, name: str) -> Float[Tensor, "v d"]:
    """Return the matrix of token embeddings.

    Args:
        module: The part of a model that embeds token ids.
        name: What error messages call the model.

    Returns:
        One row per token id, shape (v, d).

    Raises:
        ModelError: If there is none.
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
    return weight


def check_output(output: Tensor, *, name: str) -> None:
    """Check that a model's answer to a plain text is finite.

    Args:
        output: What it answers.
        name: What the error message calls the model.

    Raises:
        ModelError: If there is NaN or infinity in it.
    """
    if not bool(torch.isfinite(output).all()):
        raise ModelError(
            f"{name}: the answer to a plain text holds NaN or infinity, so the weights are damaged "
            "or overflow in fp32. Copy or convert them again."
        )


def describe_unusual(
    module: Any, tokenizer: Tokenizer, *, max_length: int | None
) -> tuple[str, ...]:
    """Say what is unusual about a model, and how it is dealt with.

    Args:
        module: The part of the model that embeds token ids.
        tokenizer: Its tokenizer.
        max_length: Longest text in tokens, or `None` if neither model nor tokenizer names a limit.

    Returns:
        Sentences.
    """
    facts = check_tokenizer(tokenizer)
    weight = embedding_weight(module, name=tokenizer.name).detach()
    notes: list[str] = []
    if facts.changed:
        notes.append(
            f"{len(facts.changed)} of {len(HOSTILE)} test texts do not survive its tokenizer "
            f"(such as {facts.changed[0]!r}); as a writer it is only offered texts that do."
        )
    if not facts.keeps_leading_blank:
        notes.append("Its tokenizer does not tell a text from the same text after a blank.")
    if facts.joins_punctuation:
        notes.append("Its tokenizer takes blanks before punctuation away when it decodes.")
    if facts.num_added:
        notes.append(f"{facts.num_added} tokens were added to its tokenizer and are plain text.")
    if max_length is None:
        notes.append("It names no longest text.")
    if extra := weight.shape[0] - facts.num_tokens:
        notes.append(f"{extra} rows of its matrix have no token; they are never proposed.")
    if zeros := int((weight.abs().amax(dim=1) == 0).sum()):
        notes.append(f"{zeros} rows of its matrix are zero.")
    some = torch.linspace(0, weight.shape[0] - 1, 64, device=weight.device).long()
    with torch.no_grad():
        norm, scaled = float(weight[some].norm()), float(module.get_input_embeddings()(some).norm())
    scale = scaled / norm if norm else 1.0
    if abs(scale - 1.0) > 1e-3:
        notes.append(f"Its embedding layer multiplies the matrix by {scale:.4g}.")
    return tuple(notes)


def repeated_labels(labels: Sequence[str]) -> list[str]:
    """Return the labels that more than one class has, by lower-case name."""
    lower = [label.lower() for label in labels]
    return sorted({label for label in lower if lower.count(label) > 1})
