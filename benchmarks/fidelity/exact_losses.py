"""The exact losses of a sample of eligible tokens in a context, kept on disk.

A file holds one context for one secondary *tower* (similarity and image-text share one); its name
carries a fingerprint of all that it depends on. Read next: `benchmarks.fidelity.models`.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.fidelity.contexts import Context
from fuseprompt.cache import write_atomically
from fuseprompt.models.base import CausalModel
from fuseprompt.objective.bound_term import Term
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer

FORMAT_VERSION: Final = 3

#: Tokens of a context that are drawn; all of a vocabulary take minutes a context.
NUM_TOKENS: Final = 6000

#: Texts in one call of the secondary; bounds the memory.
_CHUNK: Final = 4096


@final
@dataclass(frozen=True, eq=False)
class Truth:
    """Exact losses of the eligible tokens of one context that were drawn.

    Tokens whose texts are equal for the secondary share a row.

    Attributes:
        context: The place.
        tokens: Eligible primary tokens that were drawn, ascending, shape (c,).
        log_probs: The language model's, of each token after the text left of it, shape (c,).
        rows: Row of each token's text, shape (c,).
        nll_sum: Negative log-likelihood of the context's own tokens left of the place, in nats.
        num_scored: How many tokens that sum has.
        losses: By objective: exact loss against each target, shape (t, r).
        targets: By objective: the target vectors, shape (t, o).
    """

    context: Context
    tokens: Int[Tensor, " c"]
    log_probs: Float[Tensor, " c"]
    rows: Int[Tensor, " c"]
    nll_sum: float
    num_scored: int
    losses: Mapping[str, Float[Tensor, "t r"]]
    targets: Mapping[str, Float[Tensor, "t o"]]

    @property
    def num_rows(self) -> int:
        """Number of distinct texts."""
        return int(self.rows.max()) + 1


@final
@dataclass(frozen=True, eq=False)
class Tower:
    """A secondary with the objectives that share its outputs.

    Attributes:
        name: Part of the file names.
        digest: Changes whenever the model does.
        terms: By objective, all with the same model.
    """

    name: str
    digest: str
    terms: Mapping[str, Term]


@final
@dataclass(frozen=True, eq=False)
class Primary:
    """The language model with the digest of its weights.

    Attributes:
        digest: Changes whenever the model does.
        model: The language model.
    """

    digest: str
    model: CausalModel


def eligible(
    primary: Tokenizer, secondary: Tokenizer, context: Context
) -> tuple[Int[Tensor, " c"], Int[Tensor, " c"], PaddedIds]:
    """Return eligible tokens among those drawn, the row of each, and the ids of each row.

    Eligible is every token of printable ASCII whose text survives the primary's round trip;
    special tokens, written out or not, are left out. In the middle of a text only tokens that begin
    a word count: any other would change the word to the left as well.

    Args:
        primary: The language model's tokenizer.
        secondary: The secondary's.
        context: The place.

    Returns:
        Tokens in ascending order, rows, and ids with special tokens of distinct rows.
    """
    specials = (*primary.special_texts, *secondary.special_texts)
    asked = [
        (i, context.left + t + context.right)
        for i, t in enumerate(primary.token_texts)
        if t and t.isascii() and t.isprintable() and (not context.right or _begins_word(t))
    ]
    asked = [(i, text) for i, text in asked if not any(s in text for s in specials)]
    if len(asked) > NUM_TOKENS:
        asked = sorted(random.Random(f"tokens {context.index}").sample(asked, NUM_TOKENS))
    left, right = primary.encode(context.left), primary.encode(context.right)
    back = primary.encode_batch([text for _, text in asked])
    kept = [
        (i, text) for (i, text), ids in zip(asked, back, strict=True) if ids == [*left, i, *right]
    ]
    row_of: dict[tuple[int, ...], int] = {}
    encoded = secondary.encode_batch([text for _, text in kept])
    rows = [row_of.setdefault(tuple(ids), len(row_of)) for ids in encoded]
    ids = PaddedIds.from_lists([secondary.add_special_tokens(row) for row in row_of])
    return torch.tensor([i for i, _ in kept]), torch.tensor(rows), ids


def _begins_word(text: str) -> bool:
    return len(text) > 1 and text[0] == " " and text[1] != " "


def compute(
    primary: Primary, tower: Tower, context: Context, targets: Mapping[str, Float[Tensor, "t o"]]
) -> Truth:
    """Compute the exact losses of one context; the targets are by objective of the tower."""
    model = next(iter(tower.terms.values())).model
    tokenizer = primary.model.tokenizer
    tokens, rows, ids = eligible(tokenizer, model.tokenizer, context)
    left = tokenizer.encode(context.left)
    log_probs = primary.model.next_log_probs(torch.tensor([left]))[0].cpu()[tokens]
    follows = primary.model.nll([left], [0])[0][:-1]
    outputs = _outputs(tower, ids)
    losses = {
        name: torch.stack(
            [term.compare(outputs, t.expand(len(outputs), -1)) for t in targets[name]]
        )
        for name, term in tower.terms.items()
    }
    return Truth(
        context,
        tokens,
        log_probs,
        rows,
        float(follows.double().sum()),
        len(follows),
        losses,
        dict(targets),
    )


@torch.no_grad()
def _outputs(tower: Tower, ids: PaddedIds) -> Float[Tensor, "r o"]:
    model = next(iter(tower.terms.values())).model
    order = torch.argsort(ids.lengths, stable=True)
    parts = [model.outputs(ids[chunk]).float().cpu() for chunk in torch.split(order, _CHUNK)]
    return torch.cat(parts)[torch.argsort(order)]


def file_name(
    primary: Primary, tower: Tower, context: Context, targets: Mapping[str, Float[Tensor, "t o"]]
) -> str:
    """Return the name of a truth's file, which carries the fingerprint of all it depends on."""
    tokenizer = next(iter(tower.terms.values())).model.tokenizer
    facts: Sequence[object] = (
        FORMAT_VERSION,
        primary.digest,
        primary.model.tokenizer.fingerprint,
        tower.digest,
        tokenizer.fingerprint,
        context,
        sorted(targets),
    )
    digest = hashlib.sha256("\0".join(str(f) for f in facts).encode())
    for name in sorted(targets):
        digest.update((targets[name] * 1e4).round().to(torch.int32).numpy().tobytes())
    return f"{tower.name}-{context.edit}-{context.index:03d}-{digest.hexdigest()[:12]}.safetensors"


def save(truth: Truth, file: Path) -> None:
    """Write a truth; a reader sees the whole file or none."""
    context = truth.context
    facts = {
        "format": FORMAT_VERSION,
        "context": [context.index, context.edit, context.left, context.right],
        "nll_sum": truth.nll_sum,
        "num_scored": truth.num_scored,
    }
    tensors = {
        "tokens": truth.tokens.int(),
        "log_probs": truth.log_probs.float(),
        "rows": truth.rows.int(),
        **{f"losses.{name}": value.float() for name, value in truth.losses.items()},
        **{f"targets.{name}": value.float() for name, value in truth.targets.items()},
    }
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    metadata = {"facts": json.dumps(facts)}
    write_atomically(file, lambda part: save_file(contiguous, part, metadata))


def read(file: Path) -> Truth | None:
    """Return the truth in a file; None if there is none, or a damaged one."""
    try:
        with safe_open(file, "pt") as opened:
            facts = json.loads(opened.metadata()["facts"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None

    def of(kind: str) -> dict[str, Tensor]:
        return {n.removeprefix(kind): t for n, t in tensors.items() if n.startswith(kind)}

    return Truth(
        Context(*facts["context"]),
        tensors["tokens"].long(),
        tensors["log_probs"],
        tensors["rows"].long(),
        facts["nll_sum"],
        facts["num_scored"],
        of("losses."),
        of("targets."),
    )
