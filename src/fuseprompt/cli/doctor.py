"""`fuseprompt doctor`: print what is installed, which models are here, and what mends the rest.

Models load as for a search; without an argument nothing is downloaded, converted or loaded.
"""

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from fuseprompt import __version__
from fuseprompt.cache import cache_dir
from fuseprompt.cli.options import Output
from fuseprompt.errors import FuseError, MetricError
from fuseprompt.offline.manifest import RECIPES, find_fault, models_dir, read_manifest
from fuseprompt.tasks.settings import ModelSettings

#: The packages that results depend on.
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pillow")

#: Packages of extras; what scoring needs is looked for by itself.
_EXTRAS = {"app": "gradio", "track": "trackio", "ray": "ray"}

#: Kinds of models by the class that `load` returns; all others join texts and images.
_KINDS = {
    "CausalLM": "language model",
    "Classifier": "classifier",
    "SentenceEncoder": "sentence encoder",
}


@dataclass(frozen=True)
class Options:
    """Print what is installed, which models are here, and what mends what is missing.

    Attributes:
        models: Load these instead and print what is unusual: offline id, folder, GGUF file or Hub
            id.
    """

    output: Output
    models: tuple[str, ...] = field(default=(), metadata={"argument": "MODEL"})


def run(options: Options) -> int:
    """Look at this installation, or at models; return 1 if something cannot be used, else 0."""
    if options.models:
        return max([_print_model(model_id, options.output) for model_id in options.models])
    report = examine()
    if options.output.json:
        print(json.dumps(report))
    else:
        if not options.output.quiet:
            _print_tables(report)
        for remedy in report["remedies"]:
            print(f"{remedy['problem']}\n  To mend it: {remedy['command']}")
    return 1 if report["remedies"] else 0


def examine() -> dict[str, Any]:
    """Return the facts as JSON values; `remedies` has what is missing and what to type."""
    versions = {"fuseprompt": __version__} | {name: _version_of(name) for name in _PACKAGES}
    device, threads = "none: torch is not installed", 0
    if versions["torch"] != "missing":
        import torch  # This takes seconds.

        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        threads = torch.get_num_threads()
    configuration = ModelSettings().models
    faults = {name: find_fault(name, afresh=True) for name in RECIPES}
    offline = [
        _state(f"offline:{name}", 0 if fault else read_manifest()[name]["size"], fault or "")
        for name, fault in faults.items()
    ]
    remedies = {
        f"The package {name} is not installed.": "pip install fuseprompt"
        for name, version in versions.items()
        if version == "missing"
    } | _find_remedies(configuration, offline)
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": versions,
        "device": device,
        "threads": threads,
        "cache": str(cache_dir()),
        "configuration": configuration,
        "offline": offline,
        "metrics": _describe_metrics(),
        "extras": {name: _describe_extra(name, extra) for extra, name in _EXTRAS.items()},
        "remedies": [{"problem": each, "command": cmd} for each, cmd in remedies.items()],
    }


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def _describe_extra(package: str, extra: str) -> str:
    """Return the version of a package, or how to get it; lacking it is no fault."""
    version = _version_of(package)
    remedy = f"not installed (pip install 'fuseprompt[{extra}]')"
    return remedy if version == "missing" else version


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


def _state(model_id: str, size: int, note: str = "") -> dict[str, Any]:
    """Return the state of a model or table; a note says why it is not ready."""
    return {"id": model_id, "ready": not note, "size": 0 if note else size, "note": note}


def _find_remedies(configuration: str, offline: list[dict[str, Any]]) -> dict[str, str]:
    """Return what keeps the configuration from being used, each with what to type."""
    if configuration == "offline":
        faults = [f"{state['id']} {state['note']}" for state in offline if not state["ready"]]
        return {"; ".join(faults) + ".": "fuseprompt prepare"} if faults else {}
    if configuration == "paper" or Path(configuration).is_file():  # `load` says what it lacks.
        return {}
    problem = f"FUSEPROMPT_MODELS is {configuration!r}: expected offline, paper or a file."
    return {problem: "unset FUSEPROMPT_MODELS"}


def _print_tables(report: Mapping[str, Any]) -> None:
    facts = {
        "python": report["python"],
        "platform": report["platform"],
        **report["versions"],
        "device": f"{report['device']}, {report['threads']} CPU threads",
        "cache": report["cache"],
        "models in use": report["configuration"],
        **report["metrics"],
        **report["extras"],
    }
    for name, fact in facts.items():
        print(f"{name:14} {fact}")
    print(f"\n{'model':50} on disk  state")
    for state in report["offline"]:
        size = f"{state['size'] / 1e6:.0f} MB" if state["ready"] else "-"
        # A fault that names the folder would make the table unreadable; it stands in full below.
        note = "ready" if state["ready"] else state["note"].partition(" (")[0].partition(":")[0]
        print(f"{state['id']:50} {size:>7}  {note}")
    print()
    if not report["remedies"]:
        print(f"Everything that {report['configuration']} needs is here ({models_dir()}).")


def _print_model(model_id: str, output: Output) -> int:
    """Load a model and print what is known of it; return 1 if it cannot be used."""
    from fuseprompt.models.hub import load

    facts: dict[str, Any] = {"id": model_id, "kind": "", "tokens": 0, "max_length": 0}
    facts |= {"labels": (), "notes": (), "error": ""}
    try:
        model = load(model_id)
        facts["kind"] = _KINDS.get(type(model).__name__, "image-text model")
        facts |= {"tokens": len(model.vocabulary), "max_length": model.max_length}
        facts |= {"labels": tuple(getattr(model, "labels", ())), "notes": model.notes}
    except FuseError as error:
        facts["error"] = str(error)
    if output.json:
        print(json.dumps(facts), flush=True)
    elif facts["error"]:
        print(f"{model_id}: cannot be used\n  {facts['error']}", flush=True)
    elif not output.quiet:
        labels = f" of {', '.join(facts['labels'])}" if facts["labels"] else ""
        size = f"{facts['tokens']:,} tokens, texts of at most {facts['max_length']:,}"
        notes = facts["notes"] or ("Nothing is unusual about it.",)
        print(f"{model_id}: {facts['kind']}{labels}, {size}", *notes, sep="\n  ", flush=True)
    return int(bool(facts["error"]))
