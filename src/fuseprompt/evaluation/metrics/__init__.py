"""Scores of captions: the metrics of the published tables, and further measures."""

from fuseprompt.evaluation.metrics.base import METRICS, Score, Scores, Scoring

__all__ = ["METRICS", "Score", "Scores", "Scoring"]
