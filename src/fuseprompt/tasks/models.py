"""What the names in settings stand for: loaded models by id, proposals by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar, final, get_args

import torch

from fuseprompt.errors import ModelError, ProblemError
from fuseprompt.fuse.table import JacobianTable
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.models.hub import load
from fuseprompt.models.image_text import ImageTextModel
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Proposal
from fuseprompt.proposals.fuse import Fuse
from fuseprompt.proposals.gradient import Gradient
from fuseprompt.proposals.language_model import LanguageModelOnly, RandomNoise
from fuseprompt.proposals.word_table import WordTable
from fuseprompt.tasks.settings import ModelIds, OnProgress, ProposalName, SearchSettings, model_ids

_M = TypeVar("_M")

#: What messages call the kinds of models.
_KINDS: Final[Mapping[Any, str]] = {
    CausalLM: "a causal language model",
    Classifier: "a sequence classifier",
    ImageTextModel: "an image-text model",
    SentenceEncoder: "a sentence encoder",
}

#: `load`, or a function that keeps what it has loaded.
Load = Callable[..., Any]


@final
@dataclass(frozen=True, eq=False)
class CaptionModels:
    """Loaded models of a caption; `lm` is the primary, which writes."""

    lm: CausalLM
    image_text: ImageTextModel
    sentiment: Classifier | None = None


def load_models(
    ids: ModelIds | str,
    *,
    with_sentiment: bool = False,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    local_only: bool = False,
    load: Load = load,
) -> CaptionModels:
    """Return the models of ids, or of what `model_ids` takes; see `load`."""
    ids = model_ids(ids) if isinstance(ids, str) else ids

    options: Any = {"device": device, "dtype": dtype, "local_only": local_only, "load": load}
    lm = load_as(ids.lm, CausalLM, **options)
    # mypy takes no protocol for a class.
    image_text = load_as(ids.image_text, ImageTextModel, **options)  # type: ignore[type-abstract]
    if not with_sentiment:
        return CaptionModels(lm, image_text)
    return CaptionModels(lm, image_text, load_as(ids.sentiment, Classifier, **options))


def load_as(model_id: str, kind: type[_M], *, load: Load = load, **options: Any) -> _M:
    """Return the model that `load` gives, if it is of a kind; else a `ModelError`."""
    model = load(model_id, **options)
    if not isinstance(model, kind):
        found = type(model).__name__
        raise ModelError(f"{model_id}: expected {_KINDS[kind]}, got a {found}.")
    return model


def proposal_named(name: str, on_progress: OnProgress | None = None) -> Proposal:
    """Return the proposal of a name; `on_progress` is called while tables or maps are made."""
    on_words = None if on_progress is None else partial(on_progress, "word table")
    match name:
        case "none":
            return LanguageModelOnly()
        case "random":
            return RandomNoise()
        case "word-table":
            return WordTable(on_progress=on_words)
        case "additive":
            return AdditiveWordTable(WordTable(on_progress=on_words))
        case "gradient":
            return Gradient()
        case "fuse":
            on_maps = None if on_progress is None else partial(on_progress, "maps")
            return Fuse(on_progress=on_maps)
    names = get_args(ProposalName)
    raise ProblemError(f"proposal {name!r}: expected one of {', '.join(names)}.")


def proposal_of(settings: SearchSettings, on_progress: OnProgress | None = None) -> Proposal:
    """Return the proposal of settings; that of the paper's maps with all that is set of them."""
    proposal = proposal_named(settings.proposal, on_progress)
    if not isinstance(proposal, Fuse):
        return proposal
    return replace(
        proposal,
        maps=read_tables(settings),
        fallback=settings.fuse_fallback,
        by_pairs=settings.fuse_cases == "pair",
    )


def read_tables(settings: SearchSettings) -> tuple[JacobianTable, ...]:
    """Return the tables of `--fuse-table`, which are checked against models where they are used."""
    return tuple(JacobianTable.load(folder, None) for folder in settings.fuse_table)
