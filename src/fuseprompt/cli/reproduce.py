"""`fuseprompt reproduce`: run `fuseprompt evaluate` with the settings of a paper's experiment."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from fuseprompt.cli import evaluate
from fuseprompt.cli.options import read_values


@dataclass(frozen=True)
class Options:
    """Repeat an experiment of the paper with its settings, which stand in for the defaults below.

    Attributes:
        experiment: Experiment.
    """

    experiment: Literal["coco", "nocaps", "senticap"] = field(metadata={"argument": "EXPERIMENT"})
    evaluation: evaluate.Evaluation


def read_experiment(name: str) -> dict[str, Any]:
    """Return the settings of an experiment, by the name of the option with "_" for "-"."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    file = resources.files("fuseprompt").joinpath("configs", f"paper_{name}.yaml")
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))


def preset(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the paper's settings, and note those that were given another value."""
    if "experiment" not in given:
        return {}
    evaluate.preset(given)  # Refuses what does not go together; the file has all that it sets.
    papers = read_values(read_experiment(given["experiment"]), evaluate.Options)
    changed = [
        f"{name} {given[name]} ({value})"
        for name, value in papers.items()
        # The paper has no size of a group.
        if name in given and given[name] != value and name != "group_size"
    ]
    if changed and not given.get("quiet"):
        print(f"note: not the paper's settings: {', '.join(changed)}", file=sys.stderr)
    return papers


def run(options: Options) -> int:
    """Repeat an experiment; return 0 if every image has a caption, else 1."""
    dataset = read_experiment(options.experiment)["dataset"]
    return evaluate.run(evaluate.Options(dataset, options.evaluation))
