"""The settings of the paper's experiments: files of this package, options of `fuseprompt evaluate`.

They say in comments where the paper, its code and its README disagree. Nothing is run here. Read
next: `fuseprompt.cli.reproduce`.
"""

from importlib import resources
from typing import Any


def read_experiment(name: str) -> dict[str, Any]:
    """Return the settings of an experiment.

    Args:
        name: Such as "coco", of `fuseprompt/configs/paper_coco.yaml`.

    Returns:
        Values by the name of the option, with "_" for "-".
    """
    import yaml  # type: ignore[import-untyped, unused-ignore]

    file = resources.files("fuseprompt").joinpath("configs", f"paper_{name}.yaml")
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))
