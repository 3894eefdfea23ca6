"""Damages: each changes a file in place and returns in words what it did."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def damage_bytes(file: Path, draw: random.Random) -> str:
    """Change the bytes of a file as disks, networks and editors do."""
    data = bytearray(file.read_bytes())
    at, size = draw.randrange(len(data)), draw.randint(1, max(1, len(data) // 4))
    how = draw.choice(
        (
            "cut",
            "cut to 0",
            "zeros",
            "flip a bit",
            "noise",
            "insert",
            "repeat",
            "line ends",
            "utf-16",
        )
    )
    if how == "cut":
        del data[at:]
    elif how == "cut to 0":
        data.clear()
    elif how == "zeros":
        data[at : at + size] = bytes(len(data[at : at + size]))
    elif how == "flip a bit":
        at = draw.randrange(min(len(data), 2000)) if draw.random() < 0.5 else at
        data[at] ^= 1 << draw.randrange(8)
    elif how == "noise":
        data[at : at + size] = draw.randbytes(len(data[at : at + size]))
    elif how == "insert":
        data[at:at] = draw.randbytes(draw.randint(1, 9))
    elif how == "repeat":
        data[at:at] = data[at : at + size]
    elif how == "line ends":
        data = data.replace(b"\n", b"\r\n") if b"\n" in data else data + b"\n"
    else:
        data = bytearray(data.decode("latin1").encode("utf-16"))
    file.write_bytes(data)
    return f"{how} at {at}"


def damage_json(file: Path, draw: random.Random) -> str:
    """Remove a value of a JSON file, or put one of another kind in its place."""
    content = json.loads(file.read_text("utf-8"))
    places = list(_places(content))
    if not places:
        return damage_bytes(file, draw)
    holder, key, path = draw.choice(places)
    how = draw.choice(("remove", "null", "text", "list", "-1", "nan", "object", "true"))
    values = {"null": None, "text": "x", "list": [], "-1": -1, "nan": float("nan")}
    if how == "remove":
        del holder[key]
    else:
        holder[key] = values.get(how, {} if how == "object" else True)
    file.write_text(json.dumps(content), "utf-8")
    return f"{how}: {path}"


def _places(content: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Yield every place in a JSON value; of a long list only the first ones."""
    if isinstance(content, dict):
        for key in sorted(content)[:40]:
            yield content, key, f"{path}.{key}"
            yield from _places(content[key], f"{path}.{key}")
    elif isinstance(content, list):
        for index in range(min(len(content), 3)):
            yield content, index, f"{path}[{index}]"
            yield from _places(content[index], f"{path}[{index}]")


def damage_tensors(file: Path, draw: random.Random) -> str:
    """Leave out, rename or reshape a tensor, or store one that is not finite."""
    tensors = load_file(file)
    name = draw.choice(sorted(tensors))
    how = draw.choice(
        ("left out", "renamed", "reshaped", "not finite", "of whole numbers", "empty")
    )
    old = tensors.pop(name)
    if how == "renamed":
        tensors[f"model.{name}x"] = old
    elif how == "reshaped":
        tensors[name] = torch.cat([old, old[:1]]) if old.ndim else old[None]
    elif how == "not finite":
        tensors[name] = torch.full_like(old, float("nan"))
    elif how == "of whole numbers":
        tensors[name] = old.to(torch.int32)
    elif how == "empty":
        tensors[name] = old.flatten()[:0]
    save_file(tensors, file, {"format": "pt"})
    return f"{how}: {name}"


def remove(file: Path, draw: random.Random) -> str:
    """Remove a file, or put a folder in its place."""
    file.unlink()
    if draw.random() < 0.3:
        file.mkdir()
        return "a folder"
    return "missing"


def damage_model_file(file: Path, draw: random.Random) -> str:
    """Change a file of a model folder, but no whole weight: nothing could tell."""
    if draw.random() < 0.1:
        return remove(file, draw)
    if file.suffix == ".safetensors":
        if draw.random() < 0.6:
            return damage_tensors(file, draw)
        data = bytearray(file.read_bytes())
        header = 8 + int.from_bytes(data[:8], "little")
        if draw.random() < 0.5:
            file.write_bytes(data[: draw.randrange(len(data))])
            return "cut"
        data[at := draw.randrange(header)] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
        return f"flip a bit at {at}, in the header"
    return draw.choice((damage_bytes, damage_json))(file, draw)


def is_json(file: Path) -> bool:
    """Return whether a file is whole JSON."""
    try:
        json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return True
