"""How a secondary's information reaches the primary's tokens.

Read next: `fuseprompt.transfer.base`.
"""
