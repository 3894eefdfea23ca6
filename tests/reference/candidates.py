"""Candidates by the plain rule, one at a time: sort all tokens, encode every longer text."""

from collections.abc import Callable, Sequence


def choose(
    texts: Sequence[str],
    scores: Sequence[Sequence[float]],
    encode: Callable[[str], list[int]],
    token_texts: Sequence[str],
    *,
    width: int,
    allows: Callable[[str], bool] = lambda text: True,
) -> list[tuple[int, int]]:
    """Return text and token of each candidate, by text and then by score; ties by token id."""
    chosen: list[tuple[int, int]] = []
    for row, text in enumerate(texts):
        finite = [t for t, s in enumerate(scores[row]) if s < float("inf")]
        kept = [
            token
            for token in sorted(finite, key=lambda t: (scores[row][t], t))
            if allows(text + token_texts[token])
            and encode(text + token_texts[token]) == [*encode(text), token]
        ]
        chosen += [(row, token) for token in kept[:width]]
    return chosen


def select_best(
    losses: Sequence[float], problems: Sequence[int], tokens: Sequence[int], num_best: int
) -> list[int]:
    """Return the best of each problem; losses that round to the same 1e-5 by token id."""
    keys = [
        (p, round(x / 1e-5) if x < float("inf") else x, t, i)
        for i, (p, x, t) in enumerate(zip(problems, losses, tokens, strict=True))
    ]
    chosen: list[int] = []
    for problem in sorted(set(problems)):
        chosen += [key[-1] for key in sorted(k for k in keys if k[0] == problem)][:num_best]
    return chosen
