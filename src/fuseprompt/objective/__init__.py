"""The objective: terms with weights, problems with targets, and what texts must keep to."""

from fuseprompt.objective.activation import Activation, HiddenStates
from fuseprompt.objective.bound_term import JointTerm, Term
from fuseprompt.objective.continuation import Continuation
from fuseprompt.objective.objective import BoundObjective, Evaluation, Objective
from fuseprompt.objective.problem import (
    Constraint,
    EndsSentence,
    Forbid,
    MaxChanged,
    MaxWords,
    NoRepeats,
    Problem,
    Prose,
    Require,
    word_changes,
)
from fuseprompt.objective.terms import Contrast, Fluency, ImageText, Label, TextSimilarity

__all__ = [
    "Activation",
    "BoundObjective",
    "Constraint",
    "Continuation",
    "Contrast",
    "EndsSentence",
    "Evaluation",
    "Fluency",
    "Forbid",
    "HiddenStates",
    "ImageText",
    "JointTerm",
    "Label",
    "MaxChanged",
    "MaxWords",
    "NoRepeats",
    "Objective",
    "Problem",
    "Prose",
    "Require",
    "Term",
    "TextSimilarity",
    "word_changes",
]
