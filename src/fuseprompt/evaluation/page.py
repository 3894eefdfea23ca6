"""Pages made of templates in `data`; those in HTML stand alone, without script or network."""

import base64
import io
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from PIL import Image

from fuseprompt.models.images import open_image


def render_page(template: str, **values: Any) -> str:
    """Return the page of a template; whatever is put in HTML stays text."""
    return _templates().get_template(template).render(values)


@cache
def _templates() -> jinja2.Environment:
    data = resources.files("fuseprompt").joinpath("data")
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: data.joinpath(name).read_text("utf-8")),
        autoescape=jinja2.select_autoescape(("html",)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def picture_urls(files: Iterable[str | Path], *, longest: int) -> list[tuple[str, str]]:
    """Return the names of pictures, each with its data URL."""
    return [(str(file), picture_url(open_image(file), longest=longest)) for file in files]


def picture_url(picture: Image.Image, *, longest: int) -> str:
    """Return a picture as a data URL, its longer side at most `longest` pixels."""
    small = picture.convert("RGB")
    small.thumbnail((longest, longest))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
