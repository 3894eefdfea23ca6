"""Search methods: one method, one file."""

from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.methods.drafts import Drafts
from fuseprompt.methods.edit_beam import EditBeam
from fuseprompt.methods.gcg import GCG
from fuseprompt.methods.local_search import LocalSearch
from fuseprompt.methods.pez import PEZ
from fuseprompt.methods.published import PublishedSearch
from fuseprompt.methods.random_search import RandomSearch

__all__ = [
    "GCG",
    "PEZ",
    "AutoDAN",
    "Drafts",
    "EditBeam",
    "LocalSearch",
    "PublishedSearch",
    "RandomSearch",
]
