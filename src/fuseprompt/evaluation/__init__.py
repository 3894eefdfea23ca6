"""Benchmarks, and the published procedure as their baseline.

Read next: `fuseprompt.evaluation.bench`.
"""
