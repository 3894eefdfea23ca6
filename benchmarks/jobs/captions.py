"""Captions by people of COCO's 40,504 val2014 pictures, from the jar in the package pycocoevalcap.

The texts stay where they are (CC BY 4.0, COCO consortium); this file only reads them.
"""

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

_NAME = "captions_val2014.json"


def read_captions() -> dict[int, list[str]]:
    """Return the captions of each picture by its id, in the order of their own ids."""
    spec = find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The captions are in pycocoevalcap: pip install 'fuseprompt[metrics]'.")
    folder = Path(spec.submodule_search_locations[0])
    for jar in sorted(folder.rglob("*.jar")):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.endswith(_NAME):
                    return _by_picture(json.loads(archive.read(name)))
    raise SystemExit(f"{folder}: no jar in it has {_NAME}; install pycocoevalcap 1.2.")


def _by_picture(content: dict) -> dict[int, list[str]]:
    captions: dict[int, list[str]] = {}
    for one in sorted(content["annotations"], key=lambda each: each["id"]):
        text = " ".join(one["caption"].split())
        captions.setdefault(one["image_id"], []).append(text)
    return dict(sorted(captions.items()))
