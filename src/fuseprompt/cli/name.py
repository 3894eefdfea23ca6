"""`fuseprompt name`: a label for each group of a file or folder, with how well it fits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseprompt.cli.job import JobOutput, Report, Shown, show_each
from fuseprompt.cli.job import record as shared_record
from fuseprompt.tasks.kinds import Name
from fuseprompt.tasks.settings import NameSettings

if TYPE_CHECKING:
    from fuseprompt.tasks.job import Failure
    from fuseprompt.tasks.name import GroupName


@dataclass(frozen=True)
class Options:
    """Name groups of texts, pictures or vectors: a label that fits one group and no other.

    Attributes:
        groups: CSV, TSV or JSONL file of texts; folder with a folder of pictures for each group; or
            safetensors file with a tensor for each group, a vector in each row.
        column: Column, or JSON key, of the texts.
        group: Column, or JSON key, that says which group a text is in.
    """

    groups: Path = field(metadata={"argument": "GROUPS"})
    settings: NameSettings
    output: JobOutput
    column: Name = "text"
    group: Name = "group"


def run(options: Options) -> int:
    """Name the groups; return 1 if a group got no label."""
    from fuseprompt.models.hub import silence_libraries
    from fuseprompt.tasks.groups import read_groups
    from fuseprompt.tasks.name import name

    silence_libraries()
    output = options.output
    groups = read_groups(options.groups, column=options.column, group=options.group)
    if groups.note:
        output.note(groups.note)
    with Report(output, len(groups.members), "groups", "Groups and their labels") as report:
        results = name(
            groups.members,
            options.settings,
            on_step=report.on_step,
            on_progress=report.bar.make,
        )
        return report.print_all(show(results))


def show(results: "Iterable[GroupName | Failure]") -> Iterator[Shown]:
    """Yield labels as they are printed and put on pages."""
    from fuseprompt.evaluation.page import picture_urls, render_page

    def show_one(one: "GroupName") -> Shown:
        texts = [member for member in one.members if isinstance(member, str)]
        files = (member for member in one.members if isinstance(member, Path))
        pictures = picture_urls(files, longest=240)
        facts = _facts(one)
        card = render_page("name.html", one=one, facts=facts, texts=texts, pictures=pictures)
        return Shown(record(one), f"{one.group}: {one.label}\n  {facts}", card, last=one.rank == 1)

    return show_each(results, "group", show_one)


def record(one: "GroupName") -> dict[str, Any]:
    """Return the JSON object of a label."""
    return {
        "group": one.group,
        "label": one.label,
        "auroc": round(one.auroc, 4),
        "auroc_nearest": round(one.auroc_nearest, 4),
        "nearest": one.nearest,
        "held_out": one.is_held_out,
        "words": len(one.label.split()),
        **shared_record(one.result),
    }


def _facts(one: "GroupName") -> str:
    known = "" if one.is_held_out else " (of members that the search knew: the group is small)"
    return (
        f"tells its members from others {one.auroc:.0%} of the time, from the nearest group "
        f"({one.nearest}) {one.auroc_nearest:.0%}{known}"
    )
