"""Search methods: one method, one file."""

from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.methods.published import PublishedSearch

__all__ = ["AutoDAN", "PublishedSearch"]
