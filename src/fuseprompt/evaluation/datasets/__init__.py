"""Captioning datasets: local files become a `Dataset`; nothing is downloaded."""

from fuseprompt.evaluation.datasets.base import Dataset, Item
from fuseprompt.evaluation.datasets.read import find_source, read_dataset
from fuseprompt.evaluation.datasets.sources import NAMES, SOURCES, Source

__all__ = ["NAMES", "SOURCES", "Dataset", "Item", "Source", "find_source", "read_dataset"]
