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
    """Return the best of each problem; losses less than 1e-5 apart, or in a chain, by token id."""
    chosen: list[int] = []
    for problem in sorted(set(problems)):
        group: list[int] = []
        groups = [group]
        for i in sorted(
            (i for i, p in enumerate(problems) if p == problem), key=losses.__getitem__
        ):
            if group and losses[i] - losses[group[-1]] >= 1e-5:
                group = []
                groups.append(group)
            group.append(i)
        ordered = [i for one in groups for i in sorted(one, key=lambda i: (tokens[i], i))]
        chosen += ordered[:num_best]
    return chosen
