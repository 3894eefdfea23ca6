"""`fuseprompt doctor MODEL...`: whether models can be loaded, and what is unusual about each.

Every model is loaded as a search would load it, so that what it refuses here it refuses there, with
the same sentence. Read next: `fuseprompt.models.selftest`, which asks the questions.
"""

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fuseprompt.errors import FuseError
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.classifier import Classifier
from fuseprompt.models.hub import Model, load
from fuseprompt.models.sentence import SentenceEncoder


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model that was loaded, or why it could not be.

    Attributes:
        id: What was asked for.
        kind: What it can do, in words; empty if it cannot be loaded.
        tokens: Rows of its vocabulary.
        max_length: Longest text in tokens, special tokens included.
        labels: Labels of a classifier.
        notes: What is unusual, and how it is dealt with.
        error: Why it cannot be used, or an empty string.
    """

    id: str
    kind: str = ""
    tokens: int = 0
    max_length: int = 0
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""


def doctor_models(ids: Sequence[str], *, quiet: bool = False, json: bool = False) -> int:
    """Load models and say what is unusual about them.

    Args:
        ids: Offline ids, folders, GGUF files or Hub ids.
        quiet: Print only what cannot be loaded.
        json: Print one JSON line per model.

    Returns:
        Exit code: 0 if all can be used, 1 if not.
    """
    found = []
    for model_id in ids:
        facts = examine_model(model_id)
        found.append(facts)
        if json:
            print(json_format.dumps(asdict(facts)), flush=True)
        elif facts.error or not quiet:
            print("\n".join(_describe(facts)), flush=True)
    return int(any(facts.error for facts in found))


def examine_model(model_id: str) -> ModelFacts:
    """Load a model and return what is known of it; one that cannot be loaded has an `error`."""
    try:
        model = load(model_id)
    except FuseError as error:
        return ModelFacts(model_id, error=str(error))
    return ModelFacts(
        model_id,
        kind=_kind(model),
        tokens=len(model.vocabulary),
        max_length=model.max_length,
        labels=tuple(model.labels) if isinstance(model, Classifier) else (),
        notes=model.notes,
    )


def _kind(model: Model) -> str:
    match model:
        case CausalLM():
            return "language model"
        case Classifier():
            return "classifier"
        case SentenceEncoder():
            return "sentence encoder"
        case _:
            return "image-text model"


def _describe(facts: ModelFacts) -> list[str]:
    if facts.error:
        return [f"{facts.id}: cannot be used", f"  {facts.error}"]
    labels = f" of {', '.join(facts.labels)}" if facts.labels else ""
    size = f"{facts.tokens:,} tokens, texts of at most {facts.max_length:,}"
    notes = facts.notes or ("Nothing is unusual about it.",)
    return [f"{facts.id}: {facts.kind}{labels}, {size}", *(f"  {note}" for note in notes)]
