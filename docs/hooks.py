"""Makes the site of what the repository holds: the README is its first page.

Links to files that are no pages of the site stand as the files' names, since the site may be read
where the repository is not.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pictures that the README shows."""
    for name in re.findall(r'src="([^"]+)"', (ROOT / "README.md").read_text("utf-8")):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    """Put the README in the place of the first page, and mend links that leave the site."""
    here = posixpath.join("docs", page.file.src_uri)
    if page.file.src_uri == "index.md":
        markdown, here = (ROOT / "README.md").read_text("utf-8"), "README.md"
    known = {file.src_uri for file in files}

    def mend(match: re.Match[str]) -> str:
        mark, label, target, anchor = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        uri = path.removeprefix("docs/")
        if uri in known and (path.startswith("docs/") or mark):
            return f"{mark}[{label}]({uri}{anchor or ''})"
        return label if label.strip("`") == path else f"{label} (`{path}`)"

    return _LINK.sub(mend, markdown)
