"""`load`: the right kind by configuration, and a quick, helpful error where there is no model."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError

from fuseprompt.errors import FuseError, MissingModelError, ModelError
from fuseprompt.models import hub
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.models.hub import load, pick_device, revision_of
from fuseprompt.models.image_text import ClipModel, TwoTowerModel
from fuseprompt.offline.manifest import OFFLINE_IDS
from tests.tiny import (
    bert_module,
    bert_tokenizer,
    classifier_module,
    clip_module,
    clip_processor,
    clip_tokenizer,
    gpt2_module,
    gpt2_tokenizer,
    llama_module,
    llama_tokenizer,
    save_folder,
)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ((gpt2_module, gpt2_tokenizer), CausalLM),
        ((llama_module, llama_tokenizer), CausalLM),
        ((bert_module, bert_tokenizer), SentenceEncoder),
        ((classifier_module, bert_tokenizer), Classifier),
        ((clip_module, clip_tokenizer, clip_processor), ClipModel),
    ],
    ids=["gpt2", "llama", "bert", "classifier", "clip"],
)
def test_folders_are_loaded_by_their_configuration(
    tmp_path: Path, parts: tuple[Any, ...], kind: type
) -> None:
    folder = save_folder(tmp_path / "any name", *(part() for part in parts))
    for model_id in (folder, str(folder)):
        model = load(model_id, device="cpu")
        assert type(model) is kind
        assert model.name == str(folder)


@pytest.mark.offline
@pytest.mark.parametrize(
    ("model_id", "kind"),
    [
        ("offline:sentence", SentenceEncoder),
        ("offline:sentence-bpe", SentenceEncoder),
        ("offline:sentiment", Classifier),
        ("offline:image-text", TwoTowerModel),
    ],
)
def test_offline_ids(model_id: str, kind: type) -> None:
    model = load(model_id, device="cpu")
    assert type(model) is kind
    assert model.name == model_id


def test_an_unknown_offline_id_lists_the_known_ones() -> None:
    with pytest.raises(MissingModelError, match=r"No offline model 'offline:clip'; there are "):
        load("offline:clip")


def test_an_offline_model_that_was_not_prepared_names_prepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    for model_id in OFFLINE_IDS:
        with pytest.raises(MissingModelError, match="fuseprompt prepare"):
            load(model_id)


@pytest.mark.parametrize("model_id", ["./nope", "/nope/nope", "~/nope", "a/b/c", ""])
def test_a_folder_that_is_not_there(model_id: str) -> None:
    with pytest.raises(
        MissingModelError, match=r"no such folder\. Give a folder, a Hub id, or one of"
    ):
        load(model_id)


@pytest.mark.parametrize("model_id", ["what is this", "a--b..c/"])
def test_a_name_that_no_hub_id_has(model_id: str) -> None:
    with pytest.raises(MissingModelError, match="offline:lm"):
        load(model_id)


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"the folder has no config\.json, expected a folder made by"
    ):
        load(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "", "\x00"])
def test_a_broken_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"its config\.json is not a JSON object"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"is_encoder_decoder": True, "architectures": ["T5Model"]}, "an encoder-decoder"),
        ({"architectures": ["Wav2Vec2ForCTC"]}, "expected a causal language model"),
        ({}, r"names the architectures \[\]"),
        ({"architectures": None}, r"names the architectures \[\]"),
        (
            {"architectures": ["ViTModel"], "image_size": 224},
            r"an image model \(\['ViTModel'\]\) that reads no text",
        ),
    ],
)
def test_a_configuration_of_another_kind(
    tmp_path: Path, config: dict[str, object], match: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=match):
        load(tmp_path)


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json"])
def test_a_folder_with_a_file_missing(tmp_path: Path, missing: str) -> None:
    save_folder(tmp_path, gpt2_module(), gpt2_tokenizer())
    (tmp_path / missing).unlink()
    with pytest.raises(FuseError, match=rf"{tmp_path.name}"):
        load(tmp_path)


def test_cut_weights(tmp_path: Path) -> None:
    save_folder(tmp_path, gpt2_module(), gpt2_tokenizer())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="its files cannot be loaded"):
        load(tmp_path)


def test_a_hub_id_offline_says_so_and_lists_the_offline_ids() -> None:
    start = time.monotonic()
    with pytest.raises(MissingModelError, match="nobody/no-such-model") as caught:
        load("nobody/no-such-model")
    assert time.monotonic() - start < 5.0
    assert all(model_id in str(caught.value) for model_id in OFFLINE_IDS)


def test_local_only_says_that_the_hub_was_not_asked() -> None:
    with pytest.raises(MissingModelError, match=r"was not asked \(local_only\)"):
        load("nobody/no-such-model", local_only=True)


def answer(refusal: Exception | None) -> Callable[..., str]:
    """Return a stand-in for the Hub's metadata call."""

    def get_hf_file_metadata(url: str, *, timeout: float) -> str:
        assert timeout <= 10.0
        if refusal is not None:
            raise refusal
        return url

    return get_hf_file_metadata


def test_a_cached_model_is_used_when_the_hub_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda *_, **__: tmp_path / "config.json"
    )
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", answer(TimeoutError("slow")))
    assert hub.find_config("some/model", local_only=False) == (tmp_path / "config.json", True)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", answer(None))
    assert hub.find_config("some/model", local_only=False) == (tmp_path / "config.json", False)


def test_the_hub_s_refusal_is_told_from_its_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", answer(TimeoutError()))
    assert hub._ask_hub("a/b") == "cannot be reached (TimeoutError)"
    refusal = HfHubHTTPError.__new__(HfHubHTTPError, "404")
    refusal.args = ("404 Client Error.\nMore.",)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", answer(refusal))
    assert hub._ask_hub("a/b") == "does not give it (404 Client Error.)"


def test_without_network_the_error_comes_within_seconds(tmp_path: Path) -> None:
    script = (
        "from fuseprompt import load\n"
        "from fuseprompt.errors import MissingModelError\n"
        "try:\n"
        "    load('nobody/no-such-model')\n"
        "except MissingModelError as error:\n"
        "    print(error)\n"
    )
    # Port 9 of this machine: nobody answers, as without a network.
    env = os.environ | {
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path),
        "PYTHONPATH": str(Path(hub.__file__).parents[2]),
    }
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be reached" in done.stdout
    assert all(model_id in done.stdout for model_id in OFFLINE_IDS)
    assert time.monotonic() - start < 20.0  # most of it is the import


def test_devices() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device(torch.device("cpu")).type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(ModelError, match="torch sees no GPU here"):
        pick_device("cuda")


def test_a_device_that_does_not_exist() -> None:
    with pytest.raises(ModelError, match=r"device 'gpu' is not one that torch knows"):
        pick_device("gpu")


def test_a_folder_is_known_by_its_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
    first = revision_of(str(tmp_path / "a"))
    assert len(first) == 64
    assert revision_of(str(tmp_path / "b")) == first
    (tmp_path / "b" / "model.safetensors").write_bytes(b"weightz")
    assert revision_of(str(tmp_path / "b")) != first


def test_a_gguf_file_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"1")
    first = revision_of(str(tmp_path / "x.gguf"))
    (tmp_path / "x.gguf").write_bytes(b"2")
    assert revision_of(str(tmp_path / "x.gguf")) != first


def test_a_model_of_the_hub_is_known_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (Path("/cache/models--a--b/snapshots/0123abc/config.json"), True)
    monkeypatch.setattr(hub, "find_config", lambda name, local_only: found)
    assert revision_of("a/b") == "0123abc"


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    with pytest.raises(MissingModelError, match="fuseprompt prepare"):
        revision_of("offline:lm")
    with pytest.raises(ModelError, match=r"no config.json"):
        revision_of(str(tmp_path))


@pytest.mark.offline
def test_the_offline_models_have_revisions() -> None:
    names = ("offline:lm", "offline:image-text", "offline:sentiment")
    assert len({revision_of(name) for name in names}) == 3
