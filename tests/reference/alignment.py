"""Alignment by trying every character, with loops only. Imports nothing of ours."""


def stripped(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Shorten a span by white space at its ends, unless it is all white space."""
    start, end = span
    if text[start:end].strip() == "":
        return span
    while text[start].isspace():
        start += 1
    while text[end - 1].isspace():
        end -= 1
    return start, end


def boundary(spans: list[tuple[int, int]], char: int) -> int | None:
    """Return i if the first i tokens end by `char` and all others start at or after it."""
    for i in reversed(range(len(spans) + 1)):
        if all(e <= char for _, e in spans[:i]) and all(s >= char for s, _ in spans[i:]):
            return i
    return None


def word_parts(
    text: str, ours: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> list[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]:
    """Cut before the white space of every word where no token of either model is crossed."""
    if not text:
        return []
    ours = [stripped(text, s) for s in ours]
    theirs = [stripped(text, s) for s in theirs]
    parts, last = [], (0, 0, 0)
    for char in range(1, len(text)):
        starts_word = text[char].isspace() and not text[char - 1].isspace()
        if not starts_word or not text[char:].strip():
            continue
        i, j = boundary(ours, char), boundary(theirs, char)
        if i is None or j is None:
            continue
        parts.append(((last[0], char), (last[1], i), (last[2], j)))
        last = (char, i, j)
    parts.append(((last[0], len(text)), (last[1], len(ours)), (last[2], len(theirs))))
    return parts
