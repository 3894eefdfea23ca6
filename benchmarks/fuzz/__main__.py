"""Damage inputs in seeded ways and look how each command ends: a JSON line per damage.

Pictures, model folders, configuration files, datasets and prepared files are damaged, each in a
fresh copy, and a command reads them. Right endings are `same` (the losses of the text are those
that the undamaged models give it), `says` (another result that shows what it was made from) and
`refused` (one sentence, exit code 1 or 2). Wrong ones are `traceback`, `silent` (a loss that is
none of the undamaged models') and `mute` (an exit code without a sentence). In between is `untold`:
a bit of a settings file was flipped, and it is as whole as the settings of another model.

The models are tiny, with random weights, and everything runs in this process.
"""

import argparse
import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from benchmarks.fuzz.damages import damage_bytes, damage_json, damage_model_file, is_json, remove
from fuseprompt.cli.main import main as run_command
from fuseprompt.errors import FuseError
from fuseprompt.evaluation.datasets import read_dataset
from fuseprompt.models.images import open_image
from fuseprompt.objective.objective import BoundObjective, Problem
from fuseprompt.offline import manifest
from fuseprompt.tasks.caption import objective_of
from fuseprompt.tasks.models import load_models
from fuseprompt.tasks.settings import PREFIX, CaptionSettings

SEARCH = ("--max-tokens", "2", "--beam-width", "2", "--search-width", "4")
LABEL = "positive"
WRONG = ("traceback", "silent", "mute")

#: Seconds after which a command counts as one that never ends, and bytes that it may take.
SECONDS, MEMORY = 60, 16 << 30


@dataclass(frozen=True)
class Ending:
    """How a command ended, and what it said."""

    end: str
    code: int | None
    message: str


@dataclass(frozen=True)
class Outcome:
    """What a command printed; `fault` is the traceback of what it raised."""

    code: int | None
    out: str
    err: str
    fault: str = ""

    @property
    def records(self) -> list[dict[str, Any]]:
        """The JSON lines of the output."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]


def call(*argv: str) -> Outcome:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()

    def stop(*_: object) -> None:
        raise TimeoutError(f"no end after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    code, fault = None, ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command(argv)
    except SystemExit as ending:
        code = int(ending.code or 0)
    except BaseException:
        fault = "".join(traceback.format_exc().splitlines(keepends=True)[-6:])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Outcome(code, out.getvalue(), err.getvalue(), fault)


class Inputs:
    """Undamaged inputs in a folder, and the losses that they give."""

    def __init__(self, folder: Path) -> None:
        from tests.evaluation.datasets import fixtures
        from tests.tasks.fixtures import save_models

        self.folder, self.models = folder, folder / "models"
        save_models(self.models)
        rng = np.random.default_rng(0)
        small = rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)
        photo = Image.fromarray(small).resize((64, 48), Image.Resampling.BICUBIC)
        self.pictures = folder / "pictures"
        self.pictures.mkdir()
        exif = Image.Exif()
        exif[0x0112], exif[0x010E], exif[0x011A] = 6, "a note", 72.0
        for ending in ("png", "jpg", "gif", "webp", "tif", "bmp"):
            photo.save(self.pictures / f"a.{ending}", **({"exif": exif} if ending == "jpg" else {}))
        self.prepared, self.text = folder / "cache", ""
        self.datasets = folder / "datasets"
        fixtures.write_coco(self.datasets / "coco")
        fixtures.write_karpathy(self.datasets / "karpathy")
        fixtures.write_folder(self.datasets / "folder")
        self.config = {"seed": 3, "max_tokens": 2, "beam_width": 2, "search_width": 4}
        loaded = load_models(str(self.models / "models.yaml"), with_sentiment=True, device="cpu")
        self.plain = objective_of(CaptionSettings(), loaded)
        self.with_label = objective_of(CaptionSettings(sentiment=LABEL), loaded)

    def models_file(self, folder: Path, **ids: str) -> Path:
        """Write the file that names the models in a folder, or others, into it."""
        names = {"lm": folder / "lm", "image_text": folder / "clip", "sentiment": folder / "tone"}
        file = folder / "models.yaml"
        file.write_text("".join(f"{key}: {name}\n" for key, name in {**names, **ids}.items()))
        return file

    def judge(self, outcome: Outcome, picture: Image.Image | None) -> Ending:
        """Compare a caption's losses with those that the undamaged models give its text."""
        if (ending := refused(outcome)) is not None:
            return ending
        for found in outcome.records:
            settings = found["settings"]
            targets: dict[str, Any] = {"image": picture or open_image(found["image"])}
            objective, prefix = self.plain, settings.get("prefix", PREFIX)
            if label := settings.get("sentiment"):
                objective, targets["sentiment"] = self.with_label, label
            bound: BoundObjective = objective.bind([Problem("a", targets, prefix)])
            want = bound.evaluate([found["text"]], [0])[0].terms
            for name, value in found["terms"].items():
                if not abs(value - want[name]) <= 1e-4 * max(1.0, abs(want[name])):
                    notes = [x for x in outcome.err.splitlines() if x.startswith("note: ")]
                    if notes:
                        return Ending("says", 0, " ".join(notes))
                    return Ending("silent", 0, f"{name} is {value}, undamaged {want[name]:.6f}")
        return Ending("same", 0, "") if outcome.records else Ending("mute", 0, "no result")


def refused(outcome: Outcome) -> Ending | None:
    """Return the ending of a command that raised or refused; None if it has a result."""
    if outcome.fault:
        return Ending("traceback", outcome.code, outcome.fault)
    if outcome.code == 0:
        return None
    said = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    is_one = len(said) == 1 and outcome.code in (1, 2) and "Traceback" not in outcome.err
    return Ending("refused" if is_one else "mute", outcome.code, " ".join(said)[:300])


# Kinds of inputs: each damages a copy and runs a command on it.


def picture(inputs: Inputs, work: Path, draw: random.Random) -> tuple[str, str, Ending]:
    """Caption a damaged picture; its loss is of the pixels that Pillow alone reads from it."""
    file = Path(shutil.copy(draw.choice(sorted(inputs.pictures.iterdir())), work))
    sound = open_image(file)
    how = damage_bytes(file, draw)
    outcome = call(*_caption(file, inputs.models / "models.yaml"))
    try:
        with Image.open(file) as opened:
            opened.load()
            simple = opened.mode in ("RGB", "L") and not opened.has_transparency_data
            seen = ImageOps.exif_transpose(opened).convert("RGB") if simple else open_image(file)
    except Exception:  # Where Pillow gives up, what is read are the sound pixels.
        seen = sound
    return file.name, how, inputs.judge(outcome, seen)


def _caption(file: Path, models: Path, *more: str) -> tuple[str, ...]:
    return ("caption", str(file), "--models", str(models), *SEARCH, "--proposal", "none", *more,
            "--json", "--device", "cpu")  # fmt: skip


def model(inputs: Inputs, work: Path, draw: random.Random) -> tuple[str, str, Ending]:
    """Caption with a damaged model folder; what no file can tell (a weight's bits) stays whole."""
    folder = Path(shutil.copytree(inputs.models, work / "models"))
    files = sorted(f for f in folder.rglob("*") if f.is_file() and f.parent != folder)
    file = draw.choice(files)
    how = damage_model_file(file, draw)
    sentiment = ("--sentiment", LABEL) if file.parent.name == "tone" or draw.random() < 0.3 else ()
    picture = sorted(inputs.pictures.iterdir())[0]
    outcome = call(*_caption(picture, inputs.models_file(folder), *sentiment))
    ending = inputs.judge(outcome, None)
    if ending.end == "silent" and " at " in how and is_json(file):
        ending = replace(ending, end="untold")
    return f"{file.parent.name}/{file.name}", how, ending


def configuration(inputs: Inputs, work: Path, draw: random.Random) -> tuple[str, str, Ending]:
    """Caption with a damaged file of `--config` or of `--models`."""
    config, folder = work / "config.yaml", work / "models"
    folder.mkdir()
    models = inputs.models_file(inputs.models)
    file = draw.choice((config, models))
    values = {**inputs.config, "prefix": "A photo of", "weight": ["image=5"], "quiet": True}
    if file == config and draw.random() < 0.5:
        values[draw.choice(sorted(values))] = draw.choice(
            [None, True, -1, 1.5, [], ["a"], {"a": 1}, "x", "\ud83d", float("nan"), 10**30, ""]
        )
        how = f"odd value: {values}"
        config.write_text(json.dumps(values))  # JSON is YAML.
    else:
        config.write_text("".join(f"{key}: {json.dumps(v)}\n" for key, v in values.items()))
        copy = Path(shutil.copy(models, work / "models.yaml"))
        models = copy
        how = damage_bytes(config if file == config else copy, draw)
    picture = sorted(inputs.pictures.iterdir())[0]
    argv = ("caption", str(picture), "--models", str(models), "--config", str(config), "--json")
    ending = inputs.judge(call(*argv, "--proposal", "none", "--device", "cpu"), None)
    return file.name, how, ending


def dataset(inputs: Inputs, work: Path, draw: random.Random) -> tuple[str, str, Ending]:
    """Read a damaged dataset: its fingerprint, or a note, shows that it is another one."""
    name = draw.choice(sorted(p.name for p in inputs.datasets.iterdir()))
    sound = read_dataset(name, inputs.datasets / name)
    root = Path(shutil.copytree(inputs.datasets / name, work / name))
    files = sorted(f for f in root.rglob("*") if f.is_file())
    texts = [f for f in files if f.suffix in (".json", ".jsonl")]
    file = draw.choice(texts if draw.random() < 0.8 else files)
    kinds = [damage_bytes, remove] + [damage_json] * 3 * (file.suffix == ".json")
    how = draw.choice(kinds)(file, draw)
    try:
        found = read_dataset(name, root)
    except FuseError as error:
        ending = Ending("refused", 1, str(error))
    except Exception as error:
        ending = Ending("traceback", None, repr(error))
    else:
        shows = found.fingerprint != sound.fingerprint or found.notes != sound.notes
        lost = any(not item.image.is_file() for item in found.items)
        # A picture whose bytes changed is the caption's matter.
        ending = Ending("says" if shows or lost else "same", 0, ", ".join(found.notes))
    return f"{name}/{file.name}", how, ending


def prepared(inputs: Inputs, work: Path, draw: random.Random) -> tuple[str, str, Ending]:
    """Caption with prepared models, notes and a word table, one file of which is damaged."""
    argv = _prepare(inputs)
    os.environ["FUSEPROMPT_CACHE"] = str(shutil.copytree(inputs.prepared, work / "cache"))
    # Notes on digests are of the place where the copy was made.
    files = (f for f in (work / "cache").rglob("*") if f.is_file() and "sha256-" not in f.name)
    file = draw.choice(sorted(files))
    how = damage_bytes(file, draw) if draw.random() < 0.9 else remove(file, draw)
    outcome = call(*argv)
    ending = inputs.judge(outcome, None)
    if ending.end == "same" and (text := outcome.records[0]["text"]) != inputs.text:
        ending = Ending("silent", 0, f"the text {text!r} in place of {inputs.text!r}")
    return f"{file.parent.name}/{file.name}", how, ending


def _prepare(inputs: Inputs) -> tuple[str, ...]:
    """Prepare two offline models once, and caption with them; return that command."""
    ids = {"lm": "offline:lm", "sentiment": "offline:sentiment"}
    picture, models = sorted(inputs.pictures.iterdir())[0], inputs.folder / "prepared"
    argv = ("caption", str(picture), "--models", str(models / "models.yaml"), *SEARCH, "--json")
    argv = (*argv, "--device", "cpu", "--sentiment", LABEL)
    if not models.exists():
        os.environ["FUSEPROMPT_CACHE"] = str(inputs.prepared)
        entries = {}
        for name, folder in {"lm": "lm", "sentiment": "tone"}.items():
            place = shutil.copytree(inputs.models / folder, manifest.models_dir() / name)
            entries[name] = manifest.make_entry(name, place)
        manifest.write_manifest(entries)
        models.mkdir()
        inputs.models_file(models, image_text=str(inputs.models / "clip"), **ids)
        outcome = call(*argv)
        assert outcome.code == 0, outcome
        inputs.text = outcome.records[0]["text"]
    return argv


KINDS: dict[str, Callable[[Inputs, Path, random.Random], tuple[str, str, Ending]]] = {
    each.__name__: each for each in (picture, model, configuration, dataset, prepared)
}


def fuzz(count: int, seed: int, kinds: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what came of each damage; number and seed give the same one again."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))  # A size may be damaged, too.
    try:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as name, _own_cache():
            inputs = Inputs(Path(name))
            for number in range(count):
                kind = kinds[number % len(kinds)]
                work = Path(name) / "work"
                os.environ["FUSEPROMPT_CACHE"] = str(Path(name) / "other-cache")
                work.mkdir()
                begun = time.monotonic()
                draw = random.Random(f"{seed} {number}")
                file, damage, ending = KINDS[kind](inputs, work, draw)
                shutil.rmtree(work)
                seconds = round(time.monotonic() - begun, 2)
                yield {"number": number, "kind": kind, "file": file, "damage": damage[:200],
                       **asdict(ending), "seconds": seconds}  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextlib.contextmanager
def _own_cache() -> Iterator[None]:
    before = os.environ.get("FUSEPROMPT_CACHE")
    try:
        yield
    finally:
        os.environ.pop("FUSEPROMPT_CACHE")
        if before is not None:
            os.environ["FUSEPROMPT_CACHE"] = before


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--count", type=int, default=500, help="damages")
    parser.add_argument("--seed", type=int, default=0, help="seed of the damages")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only these; may repeat")
    options = parser.parse_args()
    endings: Counter[str] = Counter()
    for line in fuzz(options.count, options.seed, options.kind or list(KINDS)):
        print(json.dumps(line), flush=True)
        endings[f"{line['kind']}: {line['end']}"] += 1
    print(
        *(f"{count:5} {what}" for what, count in sorted(endings.items())), sep="\n", file=sys.stderr
    )
    return int(any(what.endswith(WRONG) for what in endings))


if __name__ == "__main__":
    sys.exit(main())
