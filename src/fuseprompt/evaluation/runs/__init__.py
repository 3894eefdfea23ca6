"""Captioning a whole dataset: stopped and resumed at any byte, on one machine or many.

Read in this order: `plan` (what is searched together), `journal` (what is kept), `settings` and
`folder` (what a run is), `searcher` and `executors` (who works), `dispatch` (what happens to
faults), `evaluate` (all of it), `merge`.
"""
