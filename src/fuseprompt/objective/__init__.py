"""The objective: terms with weights, problems with targets."""

from fuseprompt.objective.bound_term import JointTerm, Term
from fuseprompt.objective.objective import BoundObjective, Evaluation, Objective, Problem
from fuseprompt.objective.terms import Continuation, Fluency, ImageText, Label, TextSimilarity

__all__ = [
    "BoundObjective",
    "Continuation",
    "Evaluation",
    "Fluency",
    "ImageText",
    "JointTerm",
    "Label",
    "Objective",
    "Problem",
    "Term",
    "TextSimilarity",
]
