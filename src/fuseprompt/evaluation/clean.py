"""Captions as one line of plain text, whatever was in the file.

The usual scoring tools take one caption a line: a line break inside a caption, Unicode's own ones
included, would give every later caption to the wrong image. Words are never changed. Read next:
`fuseprompt.evaluation.datasets.base`.
"""

import unicodedata

#: Controls that `str.split` does not take for white space, and halves of surrogate pairs.
_CONTROLS = {
    **{code: " " for code in (*range(0x20), *range(0x7F, 0xA0))},
    **{code: "\N{REPLACEMENT CHARACTER}" for code in range(0xD800, 0xE000)},
    0xFEFF: "",
}


def clean_caption(text: str) -> str:
    r"""Return a caption on one line, with single blanks, composed (NFC) and fit for UTF-8.

    Args:
        text: A caption as it was written.

    Returns:
        The caption: every run of white space, line breaks of any kind and control characters is one
        blank, outer blanks and byte order marks are gone, halves of surrogate pairs are replaced.

    Example:
        >>> clean_caption(" A red\x0bkite\u2028over a\r\npond. ")
        'A red kite over a pond.'
    """
    if text.isascii() and text.isprintable():  # almost every caption of 600,000
        return " ".join(text.split())
    return " ".join(unicodedata.normalize("NFC", text.translate(_CONTROLS)).split())
