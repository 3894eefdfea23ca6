"""Captioning datasets: local files become a `Dataset`; nothing is downloaded."""

from fuseprompt.evaluation.datasets.base import NAMES, SOURCES, Dataset, Item, Source
from fuseprompt.evaluation.datasets.read import find_source, read_dataset

__all__ = ["NAMES", "SOURCES", "Dataset", "Item", "Source", "find_source", "read_dataset"]
