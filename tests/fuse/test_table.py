"""The artefact: what is written, and everything that must not load."""

import json
from pathlib import Path

import pytest
import torch

from fuseprompt.errors import FingerprintError
from fuseprompt.fuse.fit import FitSettings, fit_adapter
from fuseprompt.fuse.table import JacobianTable, fingerprint_models
from tests.fuse.tiny import made_up_words, tiny_model, tiny_pair
from tests.text.tiny import byte_bpe

WORDS = made_up_words(400)


@pytest.fixture
def saved(tmp_path):
    """Return a table and the folder it was saved to."""
    table = fit_adapter(*tiny_pair(torch.float32), words=WORDS, settings=FitSettings(min_words=16))
    table.save(tmp_path / "a table")
    return table, tmp_path / "a table"


def test_round_trip(saved):
    table, folder = saved
    loaded = JacobianTable.load(folder, table.fingerprint)
    assert loaded.reports == table.reports
    assert (loaded.max_tokens, loaded.left_out) == (table.max_tokens, table.left_out)
    assert loaded.settings["min_words"] == 16
    for key, jacobian in table.jacobians.items():
        assert torch.equal(loaded.jacobians[key], jacobian)
    assert {f.name for f in folder.iterdir()} == {"table.json", "table.safetensors"}


@pytest.mark.parametrize(
    "part",
    [
        "primary_tokenizer",
        "secondary_tokenizer",
        "primary_vocabulary",
        "secondary_vocabulary",
        "words",
        "settings",
    ],
)
def test_any_other_part_is_refused(saved, part):
    table, folder = saved
    expected = {**table.fingerprint, part: "0" * 64}
    with pytest.raises(FingerprintError, match=f"another {part.replace('_', ' ')}"):
        JacobianTable.load(folder, expected)


def test_one_changed_bit_of_an_embedding_changes_the_fingerprint():
    primary, secondary = tiny_pair()
    before = fingerprint_models(primary, secondary)
    secondary.vocabulary[3, 2] = torch.nextafter(
        secondary.vocabulary[3, 2], torch.tensor(9.0).double()
    )
    after = fingerprint_models(primary, secondary)
    assert {part for part in before if before[part] != after[part]} == {"secondary_vocabulary"}
    other = fingerprint_models(tiny_model(byte_bpe(421), 5), secondary)
    assert other["primary_tokenizer"] != before["primary_tokenizer"]


def test_damage_is_refused(saved):
    table, folder = saved
    content = bytearray((folder / "table.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "table.safetensors").write_bytes(content)
    with pytest.raises(FingerprintError, match="damaged"):
        JacobianTable.load(folder, table.fingerprint)


@pytest.mark.parametrize("expected", [{}, {"primary_tokenizer": "0" * 64}])
def test_a_check_that_would_compare_nothing_is_refused(saved, expected):
    table, folder = saved
    with pytest.raises(ValueError, match=r"Pass fingerprint_models\(primary, secondary\)"):
        JacobianTable.load(folder, expected)
    with pytest.raises(ValueError, match="the fingerprint lacks"):
        table.check(expected)
    assert JacobianTable.load(folder, fingerprint_models(*tiny_pair(torch.float32)))


@pytest.mark.parametrize("kill_at", range(3))
def test_a_save_that_is_killed_leaves_one_whole_table(saved, monkeypatch, kill_at):
    """Before the facts are written the old table is there, afterwards the new one."""
    old, folder = saved
    new = fit_adapter(
        *tiny_pair(torch.float32), words=WORDS, settings=FitSettings(min_words=16, seed=1)
    )
    renames = 0
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames > kill_at:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            new.save(folder)
    there = old if kill_at < 2 else new
    found = JacobianTable.load(folder, there.fingerprint)
    assert all(torch.equal(found.jacobians[key], t) for key, t in there.jacobians.items())
    old.save(folder)  # and the next save is not disturbed
    found = JacobianTable.load(folder, old.fingerprint)
    assert all(torch.equal(found.jacobians[key], t) for key, t in old.jacobians.items())


def test_incomplete_or_foreign_folders_are_refused(saved, tmp_path):
    table, folder = saved
    with pytest.raises(FingerprintError, match="no complete table"):
        JacobianTable.load(tmp_path / "nothing", table.fingerprint)
    facts = json.loads((folder / "table.json").read_text())
    (folder / "table.json").write_text(json.dumps({**facts, "format": 99}))
    with pytest.raises(FingerprintError, match="format 99, expected 1"):
        JacobianTable.load(folder, table.fingerprint)
    (folder / "table.json").write_text("{")
    with pytest.raises(FingerprintError, match="no complete table"):
        JacobianTable.load(folder, table.fingerprint)


def test_golden_file_of_format_1_loads_in_every_version():
    """Written by version 0.1.0; must never be written anew."""
    folder = Path(__file__).parent / "golden"
    table = JacobianTable.load(folder, None)
    assert table.fingerprint == {"primary_tokenizer": "a" * 64}
    assert table.jacobians[1, 1].flatten().tolist() == [1.0, 2.0, 3.0, 4.0]
    assert torch.equal(table.jacobians[1, 2], torch.arange(8.0).reshape(2, 2, 2) / 8)
    assert table.reports[1, 2].ridge == 0.3
    assert (table.max_tokens, table.is_shared) == (4, False)
