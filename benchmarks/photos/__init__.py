"""Captions of photos and stamps: tuning, comparisons, sentiment, tables."""
