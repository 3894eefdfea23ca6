"""`fuseprompt dream`: write texts that drive hidden units of a model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuseprompt.cli.job import JobOutput, Report, Shown, show_each
from fuseprompt.cli.job import record as shared_record
from fuseprompt.tasks.kinds import File, NaturalInt
from fuseprompt.tasks.settings import DreamSettings

if TYPE_CHECKING:
    from fuseprompt.tasks.dream import Dream
    from fuseprompt.tasks.job import Failure


@dataclass(frozen=True)
class Options:
    """Write fluent text that drives a hidden unit of a model: --layer 4 --unit 17.

    Attributes:
        unit: Number of a unit of the layer, or of a latent of --direction; may repeat.
        config: YAML file with any of these options.
    """

    settings: DreamSettings
    output: JobOutput
    unit: tuple[NaturalInt, ...] = ()
    config: File | None = None


def run(options: Options) -> int:
    """Write a text for each unit; return 1 if a unit got none."""
    from fuseprompt.models.hub import silence_libraries
    from fuseprompt.tasks.dream import dream, objective_of

    silence_libraries()
    settings, units = options.settings, options.unit
    objective = objective_of(settings, units)
    title = f"What drives {settings.model}, layer {settings.layer}"
    with Report(options.output, max(1, len(units)), "units", title) as report:
        results = dream(units, settings, objective=objective, on_step=report.on_step)
        return report.print_all(show(results, settings))


def show(results: "Iterable[Dream | Failure]", settings: DreamSettings) -> Iterator[Shown]:
    """Yield dreams as they are printed and put on pages."""
    from fuseprompt.evaluation.page import render_page

    def show_one(one: "Dream") -> Shown:
        is_near = one.result.violation > 0.0
        note = f"note: unit {one.unit}: no sentence as fluent as --fluency was found" * is_near
        values = [value for _, value in one.tokens]
        shades = {"least": min(values), "most": max(values)}
        card = render_page("dream.html", one=one, name=_name(one, settings), **shades)
        return Shown(record(one, settings), _readable(one, settings), card, note)

    return show_each(results, "unit", show_one)


def record(one: "Dream", settings: DreamSettings) -> dict[str, Any]:
    """Return the JSON object of a dream."""
    most = one.dataset_max
    return {
        "model": settings.model,
        "layer": settings.layer,
        "unit": one.unit,
        "activation": round(one.activation, 6),
        "dataset_max": None if most is None else round(most, 6),
        "dataset_text": one.dataset_text,
        **shared_record(one.result),
    }


def _name(one: "Dream", settings: DreamSettings) -> str:
    what = f"unit {one.unit}" if settings.direction is None else str(settings.direction)
    return f"{settings.model} layer {settings.layer}, {what}"


def _readable(one: "Dream", settings: DreamSettings) -> str:
    nats = one.result.terms["fluency"]
    facts = f"activation {one.activation:.3f}, {nats:.2f} nats a token"
    lines = [_name(one, settings), f"  {one.result.text}", f"  {facts}, {one.result.seconds:.1f} s"]
    if one.dataset_max is not None:
        lines.append(f"  best of the file: {one.dataset_max:.3f} {one.dataset_text}")
    return "\n".join(lines)
