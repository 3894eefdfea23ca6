"""Scores of captions: the metrics of the published tables, and further measures.

Read next: `fuseprompt.evaluation.metrics.base`, then `fuseprompt.evaluation.metrics.score`.
"""

from fuseprompt.evaluation.metrics.base import METRICS, Score, Scores, Scoring

__all__ = ["METRICS", "Score", "Scores", "Scoring"]
