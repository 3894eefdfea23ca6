"""Parts of HTML pages that stand alone, without a script or the network: style and pictures."""

import base64
import io
from html import escape
from importlib import resources

from PIL import Image


def page_head(title: str, *, style: str) -> str:
    """Return the head of a page with a plain-text title; `style` is a file of `fuseprompt/data`."""
    data = resources.files("fuseprompt").joinpath("data")
    rules = "".join(data.joinpath(name).read_text("utf-8") for name in ("page.css", style))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{rules}</style>
</head>"""


def picture_url(picture: Image.Image, *, longest: int) -> str:
    """Return a picture as a data URL, its longer side at most `longest` pixels."""
    small = picture.convert("RGB")
    small.thumbnail((longest, longest))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
