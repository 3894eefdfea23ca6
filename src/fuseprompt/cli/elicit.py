"""`fuseprompt elicit`: find a text after which language models go on as wanted."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuseprompt.cli.job import JobOutput, Report, Shown, show_each
from fuseprompt.cli.job import record as shared_record
from fuseprompt.errors import UsageError
from fuseprompt.tasks.kinds import File, Text
from fuseprompt.tasks.settings import ElicitSettings

if TYPE_CHECKING:
    from fuseprompt.tasks.elicit import Elicited
    from fuseprompt.tasks.job import Failure


@dataclass(frozen=True)
class Options:
    """Find a text after which language models go on as wanted.

    Attributes:
        continuation: What should follow the text, with its blank: " Paris". May repeat, each with
            a --context of its own; one text is found for all of them.
        context: What stands around the text, {} being its place: "{} The capital of France is".
            Without it, what should follow follows the text itself.
        config: YAML file with any of these options.
    """

    continuation: tuple[Text, ...]
    settings: ElicitSettings
    output: JobOutput
    context: tuple[Text, ...] = ()
    config: File | None = None


def run(options: Options) -> int:
    """Find a text; return 1 if there is none."""
    followings = options.continuation
    contexts = options.context or ("{}",) * (len(followings) == 1)
    if len(contexts) != len(followings):
        raise UsageError(
            f"--continuation: got {len(followings)}, and {len(contexts)} times --context. Expected "
            "as many: each context needs what should follow in it, in the same order."
        )
    from fuseprompt.models.hub import silence_libraries
    from fuseprompt.tasks.elicit import elicit

    silence_libraries()
    pairs = list(zip(contexts, followings, strict=True))
    with Report(options.output, 1, "texts", "What makes models go on as wanted") as report:
        results = elicit([pairs], options.settings, on_step=report.on_step)
        return report.print_all(show(results))


def show(results: "Iterable[Elicited | Failure]") -> Iterator[Shown]:
    """Yield texts as they are printed and put on pages."""
    from fuseprompt.evaluation.page import render_page

    def show_one(one: "Elicited") -> Shown:
        card = render_page("elicit.html", one=one, rows=_rows(one))
        return Shown(record(one), _readable(one), card)

    return show_each(results, "continuation", show_one)


def record(one: "Elicited") -> dict[str, Any]:
    """Return the JSON object of a text."""
    return {
        "pairs": [list(pair) for pair in one.pairs],
        **shared_record(one.result),
        "nll": {model: [round(v, 6) for v in values] for model, values in one.nll.items()},
        "rank": {model: list(values) for model, values in one.rank.items()},
        "goes_on": {m: [list(each) for each in values] for m, values in one.goes_on.items()},
    }


def _rows(one: "Elicited") -> list[dict[str, Any]]:
    """Return what each model makes of each pair."""
    return [
        {
            "context": template,
            "wanted": following,
            "model": model,
            "nll": one.nll[model][i],
            "rank": one.rank[model][i],
            "before": one.goes_on[model][i][0],
            "after": one.goes_on[model][i][1],
        }
        for i, (template, following) in enumerate(one.pairs)
        for model in one.nll
    ]


def _readable(one: "Elicited") -> str:
    lines = [one.text]
    for row in _rows(one):
        after = " ".join(row["after"].split())
        facts = f"{row['wanted']!r} is its choice {row['rank']} ({row['nll']:.2f} nats a token)"
        lines += [f"  {row['context']}  {row['model']}: {facts}; goes on: {after}"]
    fluency = one.result.terms["fluency"]
    return "\n".join([*lines, f"  fluency {fluency:.2f}, {one.result.seconds:.1f} s"])
