"""Our score against the library's own, family by family.

Every function returns the largest error of a family, as |ours - theirs| / max(1, |theirs|).
"Theirs" is what transformers gives a user who does everything as its pages say: the labels loss,
the family's own processor, the text-classification pipeline, autograd.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor

from fuseprompt.models.base import TextModel
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.models.hub import load
from fuseprompt.models.image_text import ClipModel
from fuseprompt.models.kv_cache import PrefixCache
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.text.retokenize import PaddedIds
from tests.models.families import LABELS, Family

#: Of different length, so that batches of them are padded.
TEXTS = (
    "A photo of a cat.",
    "two people",
    "An image of a small red house near the mountains, in 1987!",
    "bread, butter and strawberry jam on a wooden plate",
    "a",
)
PREFIX = "A photo of"
CONTINUED = (
    "A photo of a cat.",
    "A photo of two people walking along the river at night",
    "A photo of extraordinary flowers, in 1987!",
)


@dataclass(frozen=True)
class Built:
    """A family's folder, loaded by the library and by us."""

    family: Family
    folder: Path
    module: Any
    tokenizer: Any
    ours: Any


AUTO = {
    "lm": "AutoModelForCausalLM",
    "classifier": "AutoModelForSequenceClassification",
    "image-text": "AutoModel",
    "sentence": "AutoModel",
}


def open_both(family: Family, folder: Path) -> Built:
    """Load a folder with the library and with `load`."""
    auto = getattr(transformers, AUTO[family.kind])
    module = auto.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours: Any = load(folder, device="cpu")
    if isinstance(ours, CausalLM):
        # Random weights may like an end-of-text token before a text, which the library never adds.
        ours.begin_ids = ours.tokenizer.prefix_ids
    return Built(family, folder, module, tokenizer, ours)


def error(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest relative error, as contracts define the tolerance."""
    assert ours.shape == theirs.shape, f"{tuple(ours.shape)} against {tuple(theirs.shape)}"
    difference = (ours - theirs).abs() / theirs.abs().clamp_min(1.0)
    return float(torch.nan_to_num(difference, nan=float("inf")).max())


def pictures() -> list[Image.Image]:
    """Return noise of different sizes."""
    rng = np.random.default_rng(0)
    shapes = [(40 + 7 * i, 33 + 5 * i, 3) for i in range(3)]
    return [Image.fromarray(rng.integers(0, 256, s, dtype=np.uint8)) for s in shapes]


def ids_of(model: TextModel, texts: Sequence[str]) -> PaddedIds:
    """Return ids with special tokens."""
    return PaddedIds.from_lists(
        [model.tokenizer.add_special_tokens(model.tokenizer.encode(t)) for t in texts]
    )


def singly(model: TextModel, texts: Sequence[str]) -> Tensor:
    """Return the outputs of each text in a batch of its own."""
    return torch.cat([model.outputs(ids_of(model, [t])) for t in texts])


# --- Language models ---------------------------------------------------------------------------


def likelihood_errors(built: Built) -> dict[str, float]:
    """Compare the likelihood of the tokens after a prefix with the labels loss."""
    lm: CausalLM = built.ours
    encode = lm.tokenizer.encode
    rows, given = [encode(t) for t in CONTINUED], [len(encode(PREFIX))] * len(CONTINUED)
    ours = [nll[:-1].mean() for nll in lm.nll(rows, given)]
    theirs = [_labels_loss(built, text) for text in CONTINUED]
    alone = [lm.nll([row], [n])[0][:-1].mean() for row, n in zip(rows, given, strict=True)]
    errors = {
        "single": error(torch.stack(ours), torch.stack(theirs)),
        "batch of one": error(torch.stack(alone), torch.stack(ours)),
    }
    for side in ("left", "right"):
        errors[f"padded {side}"] = error(torch.stack(ours), _padded_losses(built, side))
    errors["stepwise"] = max(
        error(_stepwise(lm, row, n), nll[:-1].mean())
        for row, n, nll in zip(rows, given, lm.nll(rows, given), strict=True)
    )
    errors["cached"] = max(
        error(_stepwise_cached(lm, row, n), nll[:-1].mean())
        for row, n, nll in zip(rows, given, lm.nll(rows, given), strict=True)
    )
    return errors


def _stepwise_cached(lm: CausalLM, row: list[int], given: int) -> Tensor:
    """Return the loss from a cache, beside rows that end otherwise and are dropped."""
    cache, steps = PrefixCache(lm), []
    for i in range(given, len(row)):
        other = [*row[: i - 1], row[0]]
        log_probs = cache.next_log_probs(PaddedIds.from_lists([other, row[:i], other]))
        steps.append(-log_probs[1, row[i]])
    return torch.stack(steps).mean()


def _stepwise(lm: CausalLM, row: list[int], given: int) -> Tensor:
    steps = [-lm.next_log_probs(torch.tensor([row[:i]]))[0, row[i]] for i in range(given, len(row))]
    return torch.stack(steps).mean()


def _num_prefix(built: Built) -> int:
    return len(built.tokenizer(PREFIX)["input_ids"])


def _labels_loss(built: Built, text: str) -> Tensor:
    batch = built.tokenizer(text, return_tensors="pt")
    labels = batch["input_ids"].clone()
    labels[:, : _num_prefix(built)] = -100
    with torch.no_grad():
        return built.module(input_ids=batch["input_ids"], labels=labels).loss


def _padded_losses(built: Built, side: str) -> Tensor:
    """Return the loss of each text of a padded batch, its padding masked as `generate` does."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(built.folder, padding_side=side)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    batch = tokenizer(list(CONTINUED), padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    accepts = inspect.signature(built.module.forward).parameters
    more = {"position_ids": positions} if "position_ids" in accepts else {}
    with torch.no_grad():
        logits = built.module(input_ids=ids, attention_mask=mask, **more).logits
    nll = -logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    counted = (positions[:, 1:] >= _num_prefix(built)) & (mask[:, 1:] == 1)
    return (nll * counted).sum(1) / counted.sum(1)


def end_error(built: Built) -> float:
    """Compare the end event with the probabilities of a plain forward pass."""
    lm: CausalLM = built.ours
    text = CONTINUED[0]
    with torch.no_grad():
        logits = built.module(**built.tokenizer(text, return_tensors="pt")).logits[0, -1]
    theirs = -logits.softmax(-1)[lm.end_ids].sum().log()
    ids, given = lm.tokenizer.encode(text), len(lm.tokenizer.encode(PREFIX))
    nll = lm.nll([ids], [given])[0]
    whole = torch.tensor(Fluency(lm).evaluate([text], [Problem("0", prefix=PREFIX)])[0])
    by_hand = (_labels_loss(built, text) * (len(nll) - 1) + theirs) / len(nll)
    return max(error(nll[-1], theirs), error(whole, by_hand))


# --- Secondaries -------------------------------------------------------------------------------


def output_errors(built: Built) -> dict[str, float]:
    """Compare outputs with the library's for single texts, padded batches and batches of one."""
    model: TextModel = built.ours
    ours = model.outputs(ids_of(model, TEXTS))
    reference = {
        "classifier": _pipeline_scores,
        "image-text": _text_features,
        "sentence": _sentence_vectors,
    }[built.family.kind]
    shown = ours.softmax(-1) if isinstance(model, Classifier) else ours
    errors = {
        "single": error(shown, reference(built, batch_size=1)),
        "padded": error(shown, reference(built, batch_size=len(TEXTS))),
        "batch of one": error(singly(model, TEXTS), ours),
    }
    if isinstance(model, ClipModel):
        errors["picture"] = error(model.image_features(pictures()), _image_features(built))
        cosine = shown @ model.image_features(pictures()).T
        errors["cosine"] = error(cosine, reference(built, batch_size=1) @ _image_features(built).T)
        together = model.image_features(pictures())
        alone = torch.cat([model.image_features([p]) for p in pictures()])
        errors["picture alone"] = error(alone, together)
        errors["cached"] = error(_cached(model), ours)
    return errors


def _cached(model: ClipModel) -> Tensor:
    """Return the features of the texts from their halves, where the tower goes on from a prefix."""
    cache, ids = model.start_cache(), ids_of(model, TEXTS)
    if cache is None:
        return model.outputs(ids)
    doubled = ids[torch.arange(2 * len(ids)) % len(ids)]  # a prefix of one text alone is no use
    prefixes = PaddedIds(doubled.ids[: len(ids)], ids.lengths // 2)
    rows = torch.arange(len(doubled)) % len(ids)
    return cache.outputs(doubled, prefixes, rows)[len(ids) :]


def _pipeline_scores(built: Built, batch_size: int) -> Tensor:
    pipe = transformers.pipeline(
        "text-classification", built.module, tokenizer=built.tokenizer, device="cpu"
    )
    rows = pipe(list(TEXTS), top_k=None, batch_size=batch_size)
    scores = [{d["label"]: d["score"] for d in row} for row in rows]
    return torch.tensor([[row[label] for label in LABELS] for row in scores])


def _text_features(built: Built, batch_size: int) -> Tensor:
    limit = built.module.config.text_config.max_position_embeddings
    always = "SigLIP" in built.family.name
    padding: dict[str, Any] = {"padding": "max_length", "max_length": limit} if always else {}
    parts = []
    for start in range(0, len(TEXTS), batch_size):
        chunk = list(TEXTS[start : start + batch_size])
        batch = built.tokenizer(chunk, return_tensors="pt", **{"padding": True, **padding})
        with torch.no_grad():
            features = built.module.get_text_features(**batch)
        parts.append(getattr(features, "pooler_output", features))
    return torch.nn.functional.normalize(torch.cat(parts), dim=-1)


def _image_features(built: Built) -> Tensor:
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(built.folder)
    with torch.no_grad():
        features = built.module.get_image_features(**processor(pictures(), return_tensors="pt"))
    return torch.nn.functional.normalize(getattr(features, "pooler_output", features), dim=-1)


def _sentence_vectors(built: Built, batch_size: int) -> Tensor:
    model: SentenceEncoder = built.ours
    parts = []
    for start in range(0, len(TEXTS), batch_size):
        chunk = list(TEXTS[start : start + batch_size])
        batch = built.tokenizer(chunk, padding=True, return_tensors="pt")
        with torch.no_grad():
            hidden = built.module(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        parts.append(hidden[:, 0] if model.pools_first else mean)
    return torch.nn.functional.normalize(torch.cat(parts), dim=-1)


def gradient_error(built: Built) -> float:
    """Compare the gradient at the embeddings with autograd's at the rows of the matrix.

    The text's tokens are all different, so the gradient of a row is that of the one position.
    """
    model: TextModel = built.ours
    ids = _distinct_ids(model)
    embeds = model.vocabulary[ids.ids].clone().requires_grad_(True)
    output = model.outputs(ids, embeds=embeds)
    weights = torch.linspace(-1.0, 1.0, output.shape[1])
    (ours,) = torch.autograd.grad((output @ weights).sum(), embeds)
    text_side = getattr(built.module, "text_model", built.module)
    matrix = text_side.get_input_embeddings().weight
    matrix.requires_grad_(True)
    (rows,) = torch.autograd.grad((_library_output(built, ids.ids) @ weights).sum(), matrix)
    matrix.requires_grad_(False)
    layer = text_side.get_input_embeddings()
    scale = layer(ids.ids).norm() / matrix[ids.ids].norm()
    # SigLIP's end token also pads, so its row has the gradient of many positions.
    padding = model.tokenizer.padding
    alone = torch.ones_like(ids.ids, dtype=torch.bool)
    if getattr(model, "padded_to", None) is not None and padding is not None:
        alone = ids.ids != padding.token_id
    return error(ours[alone], rows[ids.ids][alone] / scale)


def _distinct_ids(model: TextModel) -> PaddedIds:
    body: list[int] = []
    for token in model.tokenizer.encode(TEXTS[2]):
        if token not in model.tokenizer.add_special_tokens(body):
            body.append(token)
    return PaddedIds.from_lists([model.tokenizer.add_special_tokens(body)])


def _library_output(built: Built, ids: Tensor) -> Tensor:
    """Return what the library makes of ids, differentiable in its own matrix."""
    if built.family.kind == "classifier":
        return built.module(input_ids=ids).logits
    if built.family.kind == "sentence":
        hidden = built.module(input_ids=ids).last_hidden_state
        pooled = hidden[:, 0] if built.ours.pools_first else hidden.mean(1)
        return torch.nn.functional.normalize(pooled, dim=-1)
    batch = {"input_ids": ids}
    if "SigLIP" in built.family.name:
        batch = built.tokenizer.pad(
            {"input_ids": ids.tolist()}, padding="max_length", max_length=64, return_tensors="pt"
        )
    features = built.module.get_text_features(**batch)
    return torch.nn.functional.normalize(getattr(features, "pooler_output", features), dim=-1)
