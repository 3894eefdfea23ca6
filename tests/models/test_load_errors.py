"""Whatever is wrong with a model's files, loading ends in a ModelError that names the file."""

import json
import random
import re
import shutil
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fuseprompt.cli.main import main
from fuseprompt.errors import (
    FuseError,
    FuseWarning,
    ModelError,
    find_damaged_file,
    is_out_of_memory,
    reading,
)
from fuseprompt.models import gguf
from fuseprompt.models.hub import load
from fuseprompt.offline.image_tower import ImageTower
from tests.models.test_gguf import settings, write
from tests.tiny import (
    bert_module,
    bert_tokenizer,
    classifier_module,
    clip_module,
    clip_processor,
    clip_tokenizer,
    llama_module,
    llama_tokenizer,
    save_folder,
)

Damage = Callable[[Path], object]

PARTS: dict[str, tuple[Callable[[], Any], ...]] = {
    "lm": (llama_module, llama_tokenizer),
    "classifier": (classifier_module, bert_tokenizer),
    "sentence": (bert_module, bert_tokenizer),
    "clip": (clip_module, clip_tokenizer, clip_processor),
}
SENTENCE_FILES = {
    "modules.json": [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    "1_Pooling/config.json": {"pooling_mode": "mean"},
    "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False},
}


def save(folder: Path, kind: str) -> Path:
    """Write the folder of a tiny model."""
    save_folder(folder, *(part() for part in PARTS[kind]))
    for name, content in SENTENCE_FILES.items() if kind == "sentence" else ():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def cut(name: str, share: float = 0.5) -> Damage:
    def damage(folder: Path) -> None:
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[: int(len(raw) * share)])

    return damage


def put(name: str, content: str) -> Damage:
    return lambda folder: (folder / name).write_text(content)


def change(name: str, **values: Any) -> Damage:
    def damage(folder: Path) -> None:
        held = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(held | values))

    return damage


def change_vocabulary(folder: Path) -> None:
    held = json.loads((folder / "tokenizer.json").read_text())
    held["model"]["vocab"]["a"] = [1]
    (folder / "tokenizer.json").write_text(json.dumps(held))


def rename(old: str, new: str) -> Damage:
    def damage(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        state[new] = state[old].clone()
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


LAYER = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("kind", "damage", "match"),
    [
        ("lm", cut("model.safetensors"), r"model\.safetensors is damaged \(.*not fully covered"),
        ("lm", cut("model.safetensors", 0.0), r"model\.safetensors is damaged"),
        ("lm", put("model.safetensors", "version https://git-lfs"), r"model\.safetensors is dam"),
        ("lm", cut("tokenizer.json"), r"tokenizer\.json is damaged \(EOF"),
        ("lm", change_vocabulary, r"tokenizer\.json is damaged \(invalid type: sequence"),
        ("lm", put("tokenizer.json", "{}"), r"tokenizer\.json is damaged"),
        ("lm", put("tokenizer_config.json", "[]"), r"see tokenizer\.json and tokenizer_config"),
        ("lm", change("tokenizer_config.json", model_max_length=[]), r"tokenizer_config\.json \(T"),
        ("lm", put("generation_config.json", "1.5"), r"see config\.json, generation_config\.json"),
        ("lm", cut("generation_config.json"), r"generation_config\.json is damaged"),
        ("lm", change("config.json", hidden_size=None), r"see config\.json, .*'hidden_size'"),
        ("lm", change("config.json", num_attention_heads=0), r"see config\.json, .*ZeroDivision"),
        (
            "lm",
            change("config.json", hidden_size=32),
            r"of shape \(\d+, 16\) in place of \(\d+, 32",
        ),
        ("lm", change("config.json", vocab_size=7), "matrix only 7 rows"),
        ("lm", change("config.json", intermediate_size=10**12), "too little memory"),
        ("lm", change("config.json", model_type="no_such"), r"see config\.json"),
        (
            "lm",
            change("config.json", num_hidden_layers=1),
            r"have a weight 'model\.layers\.1\..*no p",
        ),
        ("lm", rename(f"{LAYER}.weight", f"{LAYER}.weight_scale"), r"up_proj\.weight_scale'"),
        ("lm", rename("model.norm.weight", f"{LAYER}.bias"), r"up_proj\.bias' that .*no place"),
        ("lm", rename("model.norm.weight", f"{LAYER}.lora_A.weight"), r"lora_A\.weight' that"),
        (
            "lm",
            change("config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
            r"config\.json says that the weights are quantised; expected plain ones.*GGUF",
        ),
        ("lm", change("config.json", compression_config={"format": "int"}), "are quantised"),
        ("clip", change("config.json", text_config={"quantization_config": {"a": 1}}), "quantised"),
        ("classifier", change("config.json", id2label=[]), r"see config\.json"),
        ("classifier", change("config.json", id2label={"x": "y"}), r"see config\.json, .*'x'"),
        ("sentence", put("modules.json", "[1]"), r"see modules\.json and the files that it names"),
        ("sentence", put("modules.json", "{}"), r"see modules\.json \(TypeError: expected a list"),
        ("sentence", cut("modules.json"), r"modules\.json is damaged"),
        ("sentence", put("1_Pooling/config.json", "[]"), r"see 1_Pooling/config\.json"),
        ("sentence", cut("1_Pooling/config.json"), r"1_Pooling/config\.json is damaged"),
        (
            "sentence",
            put("sentence_bert_config.json", "\x00"),
            r"sentence_bert_config\.json is dam",
        ),
        ("clip", put("preprocessor_config.json", "["), r"preprocessor_config\.json is damaged"),
        ("clip", change("preprocessor_config.json", image_std=["", 1, 1]), r"preprocessor_config"),
        ("clip", change("preprocessor_config.json", image_mean=[]), r"see preprocessor_config\.js"),
        ("clip", change("preprocessor_config.json", crop_size=9), r"see preprocessor_config\.js"),
        (
            "clip",
            change("preprocessor_config.json", image_std=[1, 1, -1]),
            "expected numbers above",
        ),
        ("clip", change("preprocessor_config.json", image_std=[0.5, 0, 1]), "expected numbers ab"),
        (
            "clip",
            change("preprocessor_config.json", do_rescale=[]),
            "do_rescale is .*true or f",
        ),
        ("clip", change("preprocessor_config.json", do_normalize="no"), "do_normalize .*true or f"),
        ("clip", change("preprocessor_config.json", size=True), "size is .*expected numbers in it"),
        # Pictures that are no squares then have another size than the model takes.
        ("clip", change("preprocessor_config.json", do_center_crop=None), r"see preprocessor_conf"),
        ("clip", change("preprocessor_config.json", do_center_crop=False), r"see preprocessor_con"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, kind: str, damage: Damage, match: str
) -> None:
    folder = save(tmp_path / "mine", kind)
    damage(folder)
    with pytest.raises(ModelError, match=f"mine: .*({match})") as caught:
        load(folder, device="cpu")
    assert re.search(r"\. (Copy|Give|There is|Rename)", str(caught.value))


def test_weights_of_the_older_kind_that_are_cut(tmp_path: Path) -> None:
    save(tmp_path, "lm")
    state = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    load(tmp_path, device="cpu")
    cut("pytorch_model.bin")(tmp_path)
    with pytest.raises(ModelError, match=r"see config\.json, generation_config\.json and the wei"):
        load(tmp_path, device="cpu")


@pytest.mark.parametrize("place", ["read-only", "full", "full while tensors are written"])
def test_a_gguf_file_needs_room_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        if place == "read-only":
            raise PermissionError(13, "Permission denied")
        if place == "full":
            raise OSError(28, "No space left on device")
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))
    file = write(tmp_path / "x.gguf", settings())
    monkeypatch.setattr(gguf, "mkdtemp" if place == "read-only" else "save_file", fail)
    with pytest.raises(ModelError, match=r"x\.gguf: no folder can be made .*set FUSEPROMPT_CACHE"):
        load(file, device="cpu")
    assert not list(tmp_path.rglob("*.safetensors"))


def test_where_the_cache_can_be_no_folder_a_gguf_file_gets_a_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("no folder can be made here")
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.warns(FuseWarning, match="cache may not be written to by this user: using .*home"):
        load(write(tmp_path / "x.gguf", settings()), device="cpu")
    assert list((tmp_path / "home").rglob("*.safetensors"))


@pytest.mark.parametrize("length", [0, 3, 8, 20, 24, 40, 200, 3000, 20000])
def test_a_gguf_header_that_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))
    file = write(tmp_path / "x.gguf", settings())
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(ModelError, match=r"x\.gguf: (the GGUF file is cut off|Expected a GGUF)"):
        load(file, device="cpu")
    file.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 1 << 40, 1 << 50))
    with pytest.raises(ModelError, match=r"x\.gguf: the GGUF file is cut off"):
        load(file, device="cpu")


def test_an_offline_folder_that_lacks_a_tensor_names_prepare(tmp_path: Path) -> None:
    match = r"offline:image-text: .*'class_features'.*prepare`"
    inside = reading(tmp_path, "all of them", name="offline:image-text")
    with pytest.raises(ModelError, match=match), inside:
        raise KeyError("class_features")
    with pytest.raises(ModelError, match="prepare"):
        ImageTower.load(tmp_path, None)


def test_what_is_no_fault_of_files_passes() -> None:
    for error in (KeyboardInterrupt(), FuseError("mine"), SystemExit(2)):
        with pytest.raises(type(error)), reading("", "nothing"):
            raise error
    assert is_out_of_memory(MemoryError())
    with pytest.raises(ModelError, match="too little memory"), reading("x", "the weights"):
        raise MemoryError


def test_a_panic_of_a_library_in_rust_is_an_error_too() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(ModelError, match="see the weights"), reading("x", "the weights"):
        raise panic("called `Option::unwrap()` on a `None` value")


def test_doctor_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut("tokenizer.json")(save(tmp_path, "lm"))
    assert find_damaged_file(tmp_path).startswith("tokenizer.json")
    assert main(["doctor", str(tmp_path)]) == 1
    assert "tokenizer.json is damaged" in capsys.readouterr().out


ODD: tuple[Any, ...] = (None, [], {}, "", 0, -1, 1.5, "x", True, [1], {"a": 1}, 10**9)


def mutate(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one node exchanged or left out."""
    places: list[tuple[Any, Any]] = [({"": value}, "")]
    for holder, key in places:
        inner = holder[key]
        if isinstance(inner, dict | list):
            keys = list(inner) if isinstance(inner, dict) else range(len(inner[:50]))
            places.extend((inner, k) for k in keys)
    holder, key = rng.choice(places)
    if rng.random() < 0.3 and key != "":
        del holder[key]
    else:
        holder[key] = rng.choice(ODD)
    return places[0][0][""]


@pytest.mark.slow
@pytest.mark.parametrize("kind", PARTS)
def test_damage_at_random_ends_in_a_sentence(tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    whole = save(tmp_path / "whole", kind)
    for _ in range(125):
        folder = tmp_path / "mine"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        file = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
        raw = file.read_bytes()
        match rng.choice(["cut", "bytes", "json", "json", "gone"]):
            case "cut":
                file.write_bytes(raw[: rng.randrange(len(raw))])
            case "bytes":
                places = [rng.randrange(min(len(raw), 3000)) for _ in range(3)]
                file.write_bytes(bytes(7 if i in places else b for i, b in enumerate(raw)))
            case "json" if file.suffix == ".json":
                file.write_text(json.dumps(mutate(json.loads(raw), rng)))
            case _:
                file.unlink()
        with suppress(FuseError), warnings.catch_warnings():
            warnings.simplefilter("ignore", FuseWarning)  # a note says it too
            load(folder, device="cpu")
