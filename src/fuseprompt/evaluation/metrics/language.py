"""How varied and how fluent captions are, whatever the images show.

Neither needs references. Fluency under the language model that wrote the captions says how well the
search did; take another one. Read next: `fuseprompt.evaluation.metrics.measures`.
"""

import re
from collections.abc import Sequence

from fuseprompt.errors import MetricError
from fuseprompt.models.base import CausalModel


def distinct(captions: Sequence[str], n: int) -> float:
    """Return the share of runs of `n` words that are different, over all captions together.

    Args:
        captions: Captions; words are runs of letters, digits and apostrophes, in lower case.
        n: Words of a run, such as 1 or 2.

    Returns:
        From 0 to 1; it falls with the number of captions, so compare equally many. 0 without words.

    Example:
        >>> distinct(["A dog.", "A red dog"], 1), distinct(["A dog.", "A red dog"], 2)
        (0.6, 1.0)
    """
    runs = [
        tuple(words[start : start + n])
        for caption in captions
        for words in [re.findall(r"[\w']+", caption.lower())]
        for start in range(len(words) - n + 1)
    ]
    return len(set(runs)) / len(runs) if runs else 0.0


def nats_per_token(captions: Sequence[str], model: CausalModel) -> float:
    """Return the mean negative log-likelihood of captions, each in nats per token with its end.

    Args:
        captions: Captions; empty ones are left out, long ones cut at the model's length.
        model: The language model that judges.

    Returns:
        Nats per token of the model; smaller is more fluent. Tokens differ between models, so
        compare captions under one model only.

    Raises:
        MetricError: If all captions are empty.
    """
    written = [caption for caption in captions if caption]
    if not written:
        raise MetricError("All captions are empty: there is no fluency to judge.")
    rows = [ids[: model.max_length - 1] for ids in model.tokenizer.encode_batch(written)]
    values = [float(nll.double().mean()) for nll in model.nll(rows, [0] * len(rows))]
    return sum(values) / len(values)
