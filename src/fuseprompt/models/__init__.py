"""Models of all families behind a few protocols.

Read next: `fuseprompt.models.base`.
"""
