"""Captioning a whole dataset: stopped and resumed at any byte, on one machine or many.

Read in this order: `plan` (what is searched together), `journal` and `folder` (what is kept),
`searcher` and `workers` (who works), `dispatch` (faults), `evaluate`.
"""
