"""List the captioned pictures of the fetched packages, as phrases without article.

Three sources, each a list of `Item`: openclipart (titles, keywords and file names), Noto emoji
(names) and Tux Paint stamps (one-sentence captions). The first two are for training and choosing;
the stamps are for the final evaluation only, and nothing here mixes them.

This file opens no picture. Read next: `extract_features.py`.
"""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

_SKIP_FOLDERS = {"shapes", "buttons", "logos", "unsorted", "special", "containers"}
_KEEP_PATHS = ("signs_and_symbols/clocks", "signs_and_symbols/money", "geography/astronomy")
_SKIP_PATHS = (
    "computer/icons",
    "signs_and_symbols/",
    "geography/",
    "computer/buttons",
    "recreation/games/cards",
    "roadsigns",
    "office/icons",
)
#: Titles of collections and keywords of the archive's own bookkeeping say nothing about the
#: picture.
_BAD_TITLE = re.compile(
    r"clipart by|collection|theme|library|untitled|^\d|openclipart|lily|svg|logo|icon|symbol_signs"
    r"|drawing|vector|flat icon|connectors|cards?$|signs?$",
    re.IGNORECASE,
)
_BAD_KEYWORD = re.compile(
    r"hash|^.{0,2}$|clip ?art|^art$|svg|image|contour|colou?r|outline|unsorted|vector|icon|mapsym"
    r"|networksym|recreation|transportation|^science|education|special|containers|externalsource"
    r"|rollandin|nature$|signs_and_symbols|geometry|_",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"\b(\d+\w*|[a-z]|svg|alt\d*|outline\w*|contour\w*|bw|colou?r\w*|icon|clipart|architetto|"
    r"francesco\w*|remix|simple|version|page|drawing|silhouette)\b"
)


@dataclass(frozen=True)
class Item:
    """One picture and the phrases that name it.

    Attributes:
        path: The picture, relative to the data folder.
        source: "openclipart", "emoji" or "stamps".
        phrases: Phrases, the best first; stamps have their full sentence.
    """

    path: str
    source: str
    phrases: tuple[str, ...]


def is_picture_path(inner: Path) -> bool:
    """Tell the folders of things from those of icons, flags, maps, buttons and shapes.

    Args:
        inner: A picture's path below openclipart's png folder.

    Returns:
        Whether the picture may be used.
    """
    if inner.parts[0] in _SKIP_FOLDERS:
        return False
    return str(inner).startswith(_KEEP_PATHS) or not any(skip in str(inner) for skip in _SKIP_PATHS)


def list_openclipart(data: Path) -> list[Item]:
    """List the openclipart pictures that show a thing.

    Args:
        data: The data folder of fetch_data.py.

    Returns:
        Items in path order; pictures without a usable phrase are left out.
    """
    pictures = data / "openclipart-png/usr/share/openclipart/png"
    drawings = data / "openclipart-svg/usr/share/openclipart/svg"
    items = []
    for path in sorted(pictures.rglob("*.png")):
        inner = path.relative_to(pictures)
        if path.is_symlink() or not is_picture_path(inner):
            continue
        phrases = _openclipart_phrases(inner, (drawings / inner).with_suffix(".svg"))
        if phrases:
            items.append(Item(str(path.relative_to(data)), "openclipart", phrases))
    return items


def list_emoji(data: Path) -> list[Item]:
    """List the Noto emoji without skin tones, flags and letters.

    Args:
        data: The data folder of fetch_data.py.

    Returns:
        Items in the order of the package.
    """
    package = data / "emoji/package"
    items = []
    for row in json.loads((package / "emoji.json").read_text()):
        path = package / "img/google/64" / row["image"]
        if row["subcategory"] in {"country-flag", "alphanum", "keycap"} or not path.exists():
            continue
        short = [name.replace("_", " ").replace("-", " ").lower() for name in row["short_names"]]
        full = (row["name"] or short[0]).lower().split(",")[0]
        phrases = dict.fromkeys([full, *short])
        kept = tuple(p for p in phrases if re.fullmatch(r"[a-z][a-z' \-]{2,60}", p))
        if kept:
            items.append(Item(str(path.relative_to(data)), "emoji", kept))
    return items


def list_stamps(data: Path) -> tuple[list[Item], list[str]]:
    """List the Tux Paint stamps that are PNG files, and every stamp's caption.

    Args:
        data: The data folder of fetch_data.py.

    Returns:
        Items with one full sentence each, and the sorted distinct captions of all stamps (drawings
        that exist as SVG only included).
    """
    folder = data / "tuxpaint-stamps-default/usr/share/tuxpaint/stamps"
    items, captions = [], set()
    for path in sorted(folder.rglob("*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        caption = lines[0].strip() if lines else ""
        if not caption:
            continue
        has_svg = path.with_suffix(".svg").exists()
        picture = path.with_suffix(".png")
        if picture.exists():
            items.append(Item(str(picture.relative_to(data)), "stamps", (caption,)))
        if picture.exists() or has_svg:
            captions.add(caption)
    return items, sorted(captions)


def _openclipart_phrases(inner: Path, drawing: Path) -> tuple[str, ...]:
    title, author, keywords = _read_drawing(drawing)
    # This prolific author titled in Italian; his keywords are English.
    is_italian = "architetto" in author.lower()
    author_words = {word for word in re.findall(r"[a-z]+", author.lower()) if len(word) > 2}
    phrases = []
    if title and not is_italian and not _BAD_TITLE.search(title):
        phrases.append(_clean(title, set()))
    stem = _clean(inner.stem, author_words)
    if stem and not is_italian and not _BAD_TITLE.search(stem):
        phrases.append(stem)
    general = set(inner.parts[:-1])
    phrases += [
        _clean(word, set())
        for word in keywords
        if not _BAD_KEYWORD.search(word) and word not in general and word.rstrip("s") not in general
    ][:2]
    if inner.parent.name not in {"animals", "people"} and len(inner.parts) > 2:
        phrases.append(_clean(inner.parent.name, set()).removesuffix("s"))
    return tuple(dict.fromkeys(p for p in phrases if re.fullmatch(r"[a-z][a-z' \-]{2,60}", p)))


def _read_drawing(path: Path) -> tuple[str, str, list[str]]:
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return "", "", []
    titles = [e.text or "" for e in root.iter("{http://purl.org/dc/elements/1.1/}title")]
    keywords = []
    for element in root.iter():
        if element.tag.endswith("}li") and element.text:
            keywords.append(element.text.strip().lower())
    return (titles[0].strip() if titles else ""), " ".join(titles[1:]), keywords


def _clean(text: str, author_words: set[str]) -> str:
    words = re.sub(r"[_\-\.\(\)/,!\?:;\"]+", " ", text.lower())
    kept = [
        word
        for word in _NOISE.sub(" ", words).split()
        # The archive cuts file names at 25 characters, the author's name with them.
        if not any(name.startswith(word) for name in author_words if len(word) >= 2)
    ]
    return " ".join(kept)
