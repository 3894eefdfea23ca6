"""`fuseprompt rewrite`: give texts another label; results go to stdout, the rest to stderr."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from fuseprompt.cli.job import JobOutput, Report, Shown, show_each
from fuseprompt.cli.job import record as shared_record
from fuseprompt.tasks.kinds import Text
from fuseprompt.tasks.settings import RewriteSettings

if TYPE_CHECKING:
    from fuseprompt.tasks.job import Failure
    from fuseprompt.tasks.rewrite import Rewrite


@dataclass(frozen=True)
class Options:
    """Edit texts until a classifier gives them another label, with bounds on what may change.

    Attributes:
        texts: Text; "-" stands for the lines of the input.
    """

    texts: tuple[Text, ...] = field(metadata={"argument": "TEXT"})
    settings: RewriteSettings
    output: JobOutput


def run(options: Options) -> int:
    """Rewrite texts; return 1 if one got no text that keeps to all bounds."""
    from fuseprompt.models.hub import silence_libraries
    from fuseprompt.tasks.rewrite import rewrite

    silence_libraries()
    texts = [line for text in options.texts for line in _lines(text)]
    with Report(options.output, len(texts), "texts", "Rewritten texts") as report:
        results = rewrite(
            texts, options.settings, on_step=report.on_step, on_progress=report.bar.make
        )
        return report.print_all(show(results, options.settings.label))


def _lines(text: str) -> list[str]:
    return [line for line in sys.stdin.read().splitlines() if line] if text == "-" else [text]


def show(results: "Iterable[Rewrite | Failure]", label: str) -> Iterator[Shown]:
    """Yield rewritten texts as they are printed and put on pages."""
    from fuseprompt.evaluation.page import render_page

    def show_one(one: "Rewrite") -> Shown:
        note = ""
        if not one.found:
            note = f"note: no text within all bounds is {label}, nearest: {one.text}"
        elif one.text == one.original:
            note = f"note: {label} already: {one.original}"
        card = render_page("rewrite.html", one=one, diff=_diff(one))
        return Shown(record(one), _readable(one), card, note, failed=not one.found)

    return show_each(results, "original", show_one)


def record(one: "Rewrite") -> dict[str, Any]:
    """Return the JSON object of a rewritten text."""
    return {
        "found": one.found,
        "original": one.original,
        "changes": [list(change) for change in one.changes],
        "similarity": round(one.similarity, 6),
        "label_before": one.label_before,
        "label_after": one.label_after,
        "fluency_before": round(one.fluency_before, 6),
        **shared_record(one.result),
    }


def _readable(one: "Rewrite") -> str:
    marks = {"": ("", ""), "del": ("[-", "-]"), "ins": ("{+", "+}")}
    if sys.stdout.isatty():
        marks |= {"del": ("\033[31m", "\033[0m"), "ins": ("\033[32m", "\033[0m")}
    text = " ".join(words.join(marks[tag]) for tag, words in _diff(one))
    label = f"{one.label_before} -> {one.label_after}"
    fluency = f"fluency {one.fluency_before:.2f} -> {one.result.terms['fluency']:.2f}"
    facts = f"{label}, similarity {one.similarity:.2f}, {fluency}, {one.result.seconds:.1f} s"
    return f"{text}\n  {one.text}\n  {facts}"


def _diff(one: "Rewrite") -> list[tuple[str, str]]:
    """Return the words of both texts, marked "del" or "ins" where only one of them has them."""
    before, after = one.original.split(), one.text.split()
    runs = []
    for kind, i, j, k, m in SequenceMatcher(None, before, after, False).get_opcodes():
        old, new = " ".join(before[i:j]), " ".join(after[k:m])
        runs += [("", old)] if kind == "equal" else [("del", old), ("ins", new)]
    return [(tag, words) for tag, words in runs if words]
