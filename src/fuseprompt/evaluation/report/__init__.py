"""What a person reads of a run: a table beside published rows, and a gallery of its captions.

Read next: `fuseprompt.evaluation.report.write`.
"""
