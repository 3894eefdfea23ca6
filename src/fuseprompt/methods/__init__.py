"""Search methods: one method, one file."""

from fuseprompt.methods.autodan import AutoDAN

__all__ = ["AutoDAN"]
