"""The objective: terms with weights, problems with targets.

Read next: `fuseprompt.objective.objective`.
"""

from fuseprompt.objective.fluency import Fluency
from fuseprompt.objective.objective import (
    BoundObjective,
    Evaluation,
    JointTerm,
    Objective,
    Problem,
    Term,
)
from fuseprompt.objective.terms import Continuation, ImageText, Label, TextSimilarity

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
