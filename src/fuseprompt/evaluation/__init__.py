"""Datasets, metrics, runs over a dataset, their report, and a page that explains one step.

Read next: `fuseprompt.evaluation.datasets`.
"""
