"""The report of a run: a table above published rows, and a gallery of its captions."""
