"""The objective: terms with weights, problems with targets."""

from fuseprompt.objective.bound_term import JointTerm, Term
from fuseprompt.objective.objective import BoundObjective, Evaluation, Objective, Problem
from fuseprompt.objective.terms import (
    Continuation,
    Contrast,
    Fluency,
    ImageText,
    Label,
    Not,
    TextSimilarity,
)

__all__ = [
    "BoundObjective",
    "Continuation",
    "Contrast",
    "Evaluation",
    "Fluency",
    "ImageText",
    "JointTerm",
    "Label",
    "Not",
    "Objective",
    "Problem",
    "Term",
    "TextSimilarity",
]
