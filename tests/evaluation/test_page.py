"""Pages stand alone: what they show is in them, and what they are told cannot become markup."""

import base64
import io

from PIL import Image

from fuseprompt.evaluation.page import picture_url, render_page


def test_a_page_holds_both_styles_and_an_escaped_title() -> None:
    page = render_page("page.html", title="</title><script>", style="explain.css")
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in page
    assert "prefers-color-scheme: dark" in page
    assert ".chips" in page


def test_a_picture_is_scaled_down_and_never_up() -> None:
    for size, expected in (((400, 200), (50, 25)), ((20, 10), (20, 10))):
        url = picture_url(Image.new("RGB", size, "red"), longest=50)
        kind, data = url.split(",")
        assert kind == "data:image/jpeg;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == expected
