"""Maps and word tables go to the Hub and come back: on a stand-in for its API, of regular files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fuseprompt.errors import FingerprintError, FuseError
from fuseprompt.fuse.adapter import FuseAdapter
from fuseprompt.fuse.fit import FitSettings, fit_adapter
from fuseprompt.fuse.table import JacobianTable
from fuseprompt.integrations.hub import from_pretrained, push_to_hub
from fuseprompt.proposals.fuse import Fuse
from fuseprompt.proposals.word_table import WordTable, load_or_make
from fuseprompt.text.retokenize import RetokenizationTable
from tests.fuse.tiny import made_up_words
from tests.integrations.fake_hub import FakeHub, fake_hub
from tests.tiny import clip, gpt2, sentence_encoder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Let the real client of the Hub ask a server of this machine."""
    with fake_hub() as served:
        address = f"{served.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", served.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_none")
        yield served


def maps() -> JacobianTable:
    words = dict.fromkeys(made_up_words(400), 1.0)
    return fit_adapter(gpt2(), clip(), words=words, settings=FitSettings(min_words=16))


def test_maps_come_back_bit_for_bit_and_make_an_adapter(hub: FakeHub) -> None:
    fitted = maps()
    address = push_to_hub(fitted, "me/maps", gpt2(), clip(), private=True)
    assert address == f"{hub.url}/me/maps/commit/{hub.commit}"
    assert hub.private
    assert set(hub.files) == {"README.md", "table.json", "table.safetensors"}
    found = from_pretrained("me/maps", gpt2(), clip())
    assert isinstance(found, Fuse)
    (table,) = found.maps
    assert table.fingerprint == fitted.fingerprint
    assert all(torch.equal(table.jacobians[k], m) for k, m in fitted.jacobians.items())
    FuseAdapter(gpt2(), clip(), table=table)


def test_a_card_names_models_hashes_and_quality(hub: FakeHub) -> None:
    fitted = maps()
    push_to_hub(fitted, "me/maps", gpt2(), clip())
    assert not hub.private
    card = hub.files["README.md"].decode()
    assert card.startswith("---\nlibrary_name: fuseprompt\ntags: [fuseprompt, ")
    assert all(f"`{value}`" in card for value in fitted.fingerprint.values())
    assert 'primary, secondary = load("tiny-gpt2"), load("tiny-clip")' in card
    assert 'from_pretrained("me/maps", primary, secondary)' in card
    (k, n), report = sorted(fitted.reports.items())[0]
    assert f"\n| {k}, {n} | {report.words:,} | {report.r2:.3f} | {report.cosine:.3f} |\n" in card


def test_maps_of_other_models_are_refused_before_and_after(hub: FakeHub) -> None:
    with pytest.raises(FingerprintError, match="fitted to another secondary tokenizer"):
        push_to_hub(maps(), "me/maps", gpt2(), sentence_encoder())
    assert hub.asked == []
    push_to_hub(maps(), "me/maps", gpt2(), clip())
    with pytest.raises(FingerprintError, match="fitted to another secondary tokenizer"):
        from_pretrained("me/maps", gpt2(), sentence_encoder())


def test_a_word_table_comes_back_and_is_not_made_again(hub: FakeHub, monkeypatch) -> None:
    push_to_hub(WordTable(), "me/words", gpt2(), clip())
    assert "names, tokenizers and embeddings" in hub.files["README.md"].decode()
    found = from_pretrained("me/words", gpt2(), clip())
    assert isinstance(found, WordTable)
    assert found.folder is not None
    made: list[int] = []
    pair = RetokenizationTable(gpt2().tokenizer, clip().tokenizer)
    vectors, _ = load_or_make(clip(), pair, found.folder, on_progress=lambda *_: made.append(1))
    assert made == []
    assert len(vectors) > 10


def test_a_word_table_of_other_models_or_a_damaged_one_is_refused(hub: FakeHub) -> None:
    push_to_hub(WordTable(), "me/words", gpt2(), clip())
    with pytest.raises(FingerprintError, match=r"me/words holds no maps, and no whole word table"):
        from_pretrained("me/words", gpt2(), sentence_encoder())
    (name,) = (name for name in hub.files if name.endswith(".safetensors"))
    hub.files[name] = hub.files[name][:-1] + b"x"
    with pytest.raises(FingerprintError, match="Load both models by the ids on its card"):
        from_pretrained("me/words", gpt2(), clip())


def test_a_hub_that_has_nothing_or_does_not_answer_is_told(hub: FakeHub, monkeypatch) -> None:
    with pytest.raises(FuseError, match=r"me/none: the Hugging Face Hub cannot be reached, or"):
        from_pretrained("me/none", gpt2(), clip())
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FuseError, match="`hf auth login` lets you in"):
        push_to_hub(maps(), "me/maps", gpt2(), clip())


@pytest.mark.hub
def test_the_real_hub_keeps_maps(tmp_path: Path) -> None:
    """Needs a token that may write, and HF_HUB_OFFLINE=0; the repository is deleted again."""
    from huggingface_hub import HfApi

    api = HfApi(token=os.environ["HF_TOKEN"])
    repo = f"{api.whoami()['name']}/fuseprompt-test"
    try:
        push_to_hub(maps(), repo, gpt2(), clip(), private=True)
        assert isinstance(from_pretrained(repo, gpt2(), clip()), Fuse)
    finally:
        api.delete_repo(repo, missing_ok=True)
