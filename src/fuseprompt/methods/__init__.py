"""Search methods: one method, one file.

Read next: `fuseprompt.methods.autodan`.
"""

from fuseprompt.methods.autodan import AutoDAN

__all__ = ["AutoDAN"]
