"""How good captions are: BLEU, METEOR, ROUGE-L, CIDEr-D, SPICE and measures of our own.

Read next: `fuseprompt.evaluation.metrics.base`, then `fuseprompt.evaluation.metrics.score`.
"""

from fuseprompt.evaluation.metrics.base import Judged, Scores, Unavailable, Value

__all__ = ["Judged", "Scores", "Unavailable", "Value"]
