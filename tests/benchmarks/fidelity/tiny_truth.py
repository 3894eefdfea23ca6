"""A tiny language model and tiny towers in place of the offline models."""

from benchmarks.fidelity.exact_losses import Primary, Tower
from benchmarks.fidelity.models import Models
from fuseprompt.objective.terms import Label, TextSimilarity
from tests.tiny import classifier, gpt2, sentence_encoder


def tiny_models() -> Models:
    """Return models whose towers are called as the offline ones."""
    encoder = sentence_encoder()
    towers = [
        Tower("sentence", "a", {"similarity": TextSimilarity(encoder, 12.0)}),
        Tower("sentence-bpe", "b", {"similarity": TextSimilarity(encoder, 12.0)}),
        Tower("sentiment", "c", {"sentiment": Label(classifier(), 3.0)}),
    ]
    return Models(Primary("tiny", gpt2()), towers)
