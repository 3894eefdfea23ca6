"""The objective: terms with weights, problems with targets.

Read next: `fuseprompt.objective.objective`.
"""

from fuseprompt.objective.fluency import Fluency
from fuseprompt.objective.objective import BoundObjective, Evaluation, Objective, Problem, Term
from fuseprompt.objective.terms import ImageText, Label, TextSimilarity

__all__ = [
    "BoundObjective",
    "Evaluation",
    "Fluency",
    "ImageText",
    "Label",
    "Objective",
    "Problem",
    "Term",
    "TextSimilarity",
]
