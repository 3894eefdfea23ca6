"""Search methods: one method, one file."""

from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.methods.local_search import LocalSearch
from fuseprompt.methods.published import PublishedSearch

__all__ = ["AutoDAN", "LocalSearch", "PublishedSearch"]
