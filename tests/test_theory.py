"""docs/theory.md names every equation, every name in it exists, and its two tables agree."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUST_HAVE = {*(f"Eq. ({n})" for n in range(1, 7)), "Algorithm 1", "Algorithm 2"}


def read_tables(text: str) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Return paper -> code from the first table and code -> set of paper from the second."""
    forth: dict[str, str] = {}
    back: dict[str, set[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if match := re.fullmatch(r"`((?:fuseprompt|benchmarks|tests)\.[\w.]+)`", cells[0]):
            back[match[1]] = {part.strip() for part in cells[1].split(";")}
        elif len(cells) == 4 and (
            match := re.fullmatch(r"`((?:fuseprompt|benchmarks|tests)\.[\w.]+)`", cells[1])
        ):
            forth[cells[0]] = match[1]
    return forth, back


def faults(text: str, sections: set[str]) -> list[str]:
    """Return what is wrong with a page."""
    forth, back = read_tables(text)
    found = [f"{item} is missing" for item in MUST_HAVE - set(forth)]
    turned: dict[str, set[str]] = {}
    for item, code in forth.items():
        turned.setdefault(code, set()).add(item)
    if turned != back:
        found.append(f"the tables differ: {sorted(set(turned) ^ set(back)) or 'in their items'}")
    for code in sorted(set(turned) | set(back)):
        module, _, name = code.rpartition(".")
        target = getattr(importlib.import_module(module), name, None)
        if not (target and target.__doc__):
            found.append(f"{code} does not exist or has no docstring")
    notes = re.findall(r"\| ([\d, ]+) \|$", text, flags=re.MULTILINE)
    numbers = {n.strip() for cell in notes for n in cell.split(",")}
    found += [f"paper-notes.md has no section {n}" for n in sorted(numbers - sections)]
    return found


def test_page_is_complete_and_true():
    notes = (ROOT / "docs" / "paper-notes.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^## (\d+)\. ", notes, flags=re.MULTILINE))
    assert faults((ROOT / "docs" / "theory.md").read_text(encoding="utf-8"), sections) == []


def test_faults_are_found():
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    sections = {str(n) for n in range(1, 11)}
    assert faults(page, sections) == []
    assert faults(page.replace("| Eq. (4) |", "| Eq. (7) |"), sections)
    assert faults(page.replace("transfer_gradient", "no_such_function"), sections)
    assert faults(page.replace("| Eq. (2) |\n", "| Eq. (9) |\n"), sections)
    assert faults(page, sections - {"5"})
