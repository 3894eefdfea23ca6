"""`fuseprompt doctor`: what is installed, which models are here, what is missing, what mends it.

It only looks: nothing is downloaded, converted or loaded, and no model's content is read. The
checks of the offline models themselves are in `fuseprompt.offline.manifest`, to be read next.
"""

import json as json_format
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from fuseprompt import __version__
from fuseprompt.cache import cache_dir
from fuseprompt.errors import MetricError
from fuseprompt.offline.manifest import RECIPES, find_fault, models_dir, read_manifest
from fuseprompt.tasks.tables import SECONDARIES, find_table

#: The packages that results depend on.
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pillow")

#: The paper's models by role (section 4.2), as ids of the Hugging Face Hub.
PAPER_MODELS: Mapping[str, str] = {
    "language model": "gpt2-medium",
    "image-text": "openai/clip-vit-base-patch32",
    "sentiment": "cardiffnlp/twitter-roberta-base-sentiment-latest",
}


@dataclass(frozen=True)
class ModelState:
    """One model on this machine.

    Attributes:
        id: What `load` takes.
        ready: Whether it can be loaded without a network.
        size: Bytes on disk, 0 if it is not ready.
        note: What is wrong, or an empty string.
    """

    id: str
    ready: bool
    size: int
    note: str


@dataclass(frozen=True)
class Remedy:
    """Something that is missing and what brings it.

    Attributes:
        problem: What is missing, in one sentence.
        command: What to type.
    """

    problem: str
    command: str


@dataclass(frozen=True)
class Report:
    """Everything that `fuseprompt doctor` found.

    Attributes:
        python: Version and path of the interpreter.
        platform: Operating system and processor.
        versions: Package to installed version; "missing" where it is not installed.
        device: The device that `--device auto` picks, in words.
        threads: Threads that torch uses on the CPU.
        cache: Folder of everything that fuseprompt keeps.
        configuration: Models that a command without `--models` uses: "offline", "paper" or a file.
        offline: State of the offline models.
        word_tables: State of the offline models' word tables; a missing one is made when it is
            first used.
        paper: State of the paper's models in the local cache of the Hub.
        metrics: What `fuseprompt score` needs, by name: place or version, or why it is not here.
        remedies: What to do; empty if the configuration is ready.
    """

    python: str
    platform: str
    versions: Mapping[str, str]
    device: str
    threads: int
    cache: str
    configuration: str
    offline: tuple[ModelState, ...]
    word_tables: tuple[ModelState, ...]
    paper: tuple[ModelState, ...]
    metrics: Mapping[str, str]
    remedies: tuple[Remedy, ...]


def doctor(*, quiet: bool = False, json: bool = False) -> int:
    """Look at this installation and say what is missing.

    Args:
        quiet: Print only what is missing and what mends it.
        json: Print one JSON object instead of tables.

    Returns:
        Exit code: 0 if the configuration in use is ready, 1 if something has to be done first.
    """
    report = examine()
    if json:
        print(json_format.dumps(asdict(report)))
    elif quiet:
        for remedy in report.remedies:
            print(f"{remedy.problem}\n  To mend it: {remedy.command}")
    else:
        _print_tables(report)
    return 1 if report.remedies else 0


def examine() -> Report:
    """Collect the facts.

    Returns:
        What was found.
    """
    versions = {"fuseprompt": __version__} | {name: _version_of(name) for name in _PACKAGES}
    device, threads = _describe_torch(versions["torch"])
    offline = tuple(_offline_state(name) for name in RECIPES)
    paper = tuple(_hub_state(model_id) for model_id in PAPER_MODELS.values())
    configuration = os.environ.get("FUSEPROMPT_MODELS") or "offline"
    return Report(
        python=f"{platform.python_version()} ({sys.executable})",
        platform=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        versions=versions,
        device=device,
        threads=threads,
        cache=str(cache_dir()),
        configuration=configuration,
        offline=offline,
        word_tables=tuple(_table_state(name) for name in SECONDARIES),
        paper=paper,
        metrics=_describe_metrics(),
        remedies=tuple(_find_remedies(configuration, versions, offline=offline, paper=paper)),
    )


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def _describe_torch(version: str) -> tuple[str, int]:
    # Importing torch takes seconds; without it there is nothing to ask.
    if version == "missing":
        return "none: torch is not installed", 0
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return device, torch.get_num_threads()


def _describe_metrics() -> dict[str, str]:
    """Return what scoring needs and no caption does, so that lacking it is no fault."""
    from fuseprompt.evaluation.metrics.coco_tools import find_java, library_folder

    found = {}
    for name, find in (("java", find_java), ("pycocoevalcap", library_folder)):
        try:
            place = find()
            found[name] = str(place) if name == "java" else _version_of(name)
        except MetricError as error:
            found[name] = str(error)
    return found


def _offline_state(name: str) -> ModelState:
    fault = find_fault(name)
    entry = read_manifest().get(name)
    size = entry.size if entry is not None and fault is None else 0
    return ModelState(f"offline:{name}", ready=fault is None, size=size, note=fault or "")


def _table_state(secondary: str) -> ModelState:
    file = find_table(secondary)
    name = f"word table of offline:{secondary}"
    if file is None:
        return ModelState(name, ready=False, size=0, note="made by prepare, or at its first use")
    return ModelState(name, ready=True, size=file.stat().st_size, note="")


def _hub_state(model_id: str) -> ModelState:
    """Look for a model in the local cache of the Hub, without asking the Hub.

    Returns:
        Ready if its configuration and weights are there.
    """
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return ModelState(model_id, ready=False, size=0, note="huggingface_hub is not installed")
    for weights in ("model.safetensors", "pytorch_model.bin"):
        files = [try_to_load_from_cache(model_id, file) for file in ("config.json", weights)]
        paths = [Path(file) for file in files if isinstance(file, str)]
        if len(paths) == len(files):
            size = sum(path.stat().st_size for path in paths)
            return ModelState(model_id, ready=True, size=size, note="")
    return ModelState(model_id, ready=False, size=0, note="not in the Hub's local cache")


def _find_remedies(
    configuration: str,
    versions: Mapping[str, str],
    *,
    offline: tuple[ModelState, ...],
    paper: tuple[ModelState, ...],
) -> list[Remedy]:
    """List what keeps the configuration from being used.

    Returns:
        Remedies, the most basic first.
    """
    remedies = [
        Remedy(f"The package {name} is not installed.", "pip install fuseprompt")
        for name, version in versions.items()
        if version == "missing"
    ]
    if configuration == "offline":
        if faults := [f"{state.id} {state.note}" for state in offline if not state.ready]:
            remedies.append(Remedy("; ".join(faults) + ".", "fuseprompt prepare"))
    elif configuration == "paper":
        absent = [state.id for state in paper if not state.ready]
        remedies += [
            Remedy(f"{model_id} is not in the local cache of the Hub.", f"hf download {model_id}")
            for model_id in absent
        ]
    elif not Path(configuration).is_file():
        remedies.append(
            Remedy(
                f"FUSEPROMPT_MODELS is {configuration!r}: expected offline, paper or a file.",
                "unset FUSEPROMPT_MODELS",
            )
        )
    return remedies


def _print_tables(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    facts = Table(show_header=False, box=None)
    facts.add_row("python", report.python)
    facts.add_row("platform", report.platform)
    for name, version in report.versions.items():
        facts.add_row(name, version)
    facts.add_row("device", f"{report.device}, {report.threads} CPU threads")
    facts.add_row("cache", report.cache)
    facts.add_row("models in use", report.configuration)
    for tool, version in report.metrics.items():
        facts.add_row(tool, version)
    console.print(facts)
    models = Table(box=None)
    models.add_column("model", overflow="fold")
    models.add_column("on disk", no_wrap=True)
    models.add_column("state")
    for state in (*report.offline, *report.word_tables, *report.paper):
        size = f"{state.size / 1e6:.0f} MB" if state.ready else "-"
        # A fault that names the folder would make the table unreadable; it is told in full below.
        note = "ready" if state.ready else state.note.partition(" (")[0].partition(":")[0]
        models.add_row(state.id, size, note)
    console.print()
    console.print(models)
    console.print()
    if not report.remedies:
        console.print(f"Everything that {report.configuration} needs is here ({models_dir()}).")
    for remedy in report.remedies:
        console.print(f"{remedy.problem}\n  To mend it: {remedy.command}", soft_wrap=True)
