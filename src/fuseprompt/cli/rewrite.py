"""`fuseprompt rewrite`: give texts another label; results go to stdout, the rest to stderr."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from html import escape
from typing import TYPE_CHECKING, Any

from fuseprompt.cli.job import JobOutput, Report, Shown, describe_terms, show_failure
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
    from fuseprompt.tasks.job import Failure

    for one in results:
        if isinstance(one, Failure):
            yield show_failure(one.item, one.error, "original")
            continue
        note = ""
        if not one.found:
            note = f"note: no text within all bounds is {label}, nearest: {one.text}"
        elif one.text == one.original:
            note = f"note: {label} already: {one.original}"
        yield Shown(record(one), _readable(one), _card(one), note, failed=not one.found)


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
    marks = ("\033[31m", "\033[0m", "\033[32m", "\033[0m")
    text = _diff(one, marks if sys.stdout.isatty() else ("[-", "-]", "{+", "+}"))
    label = f"{one.label_before} -> {one.label_after}"
    fluency = f"fluency {one.fluency_before:.2f} -> {one.result.terms['fluency']:.2f}"
    facts = f"{label}, similarity {one.similarity:.2f}, {fluency}, {one.result.seconds:.1f} s"
    return f"{text}\n  {one.text}\n  {facts}"


def _diff(one: "Rewrite", marks: tuple[str, str, str, str]) -> str:
    """Return the words of both texts, those that only one of them has between marks."""
    before, after = one.original.split(), one.text.split()
    parts = []
    for kind, i, j, k, m in SequenceMatcher(None, before, after, False).get_opcodes():
        old, new = " ".join(before[i:j]), " ".join(after[k:m])
        if kind == "equal":
            parts.append(old)
            continue
        parts += [marks[0] + old + marks[1]] if old else []
        parts += [marks[2] + new + marks[3]] if new else []
    return " ".join(parts)


def _card(one: "Rewrite") -> str:
    # What is escaped holds no mark, as "\0" stands in no text.
    text = escape(_diff(one, ("\0d", "\0D", "\0i", "\0I")))
    for mark, tag in (("d", "<del>"), ("D", "</del>"), ("i", "<ins>"), ("I", "</ins>")):
        text = text.replace(f"\0{mark}", tag)
    facts = f"{one.label_before} to {one.label_after}, similarity {one.similarity:.2f}"
    missed = "" if one.found else "<p class=error>No text within all bounds: the nearest one.</p>"
    return f"<h2>{text}</h2>{missed}<p>{escape(facts)}</p>{describe_terms(one.result)}"
