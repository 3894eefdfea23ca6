"""Readers of captioning datasets: local files in, `Dataset` out. Nothing is downloaded.

Read next: `fuseprompt.evaluation.datasets.base`.
"""

from fuseprompt.evaluation.datasets.base import Dataset, Item

__all__ = ["Dataset", "Item"]
