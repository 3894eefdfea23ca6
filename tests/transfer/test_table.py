"""The artefact: what is written, and everything that must not load."""

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from fuseprompt.errors import FingerprintError
from fuseprompt.transfer.fit import AdapterFitter, FitSettings, fit_adapter
from fuseprompt.transfer.table import JacobianTable, fingerprint_models, tubal_factors
from tests.text.tiny import byte_bpe
from tests.transfer.tiny import made_up_words, tiny_model, tiny_pair

WORDS = made_up_words(400)


@pytest.fixture
def saved(tmp_path):
    """Return a fitter, its table and the folder it was saved to."""
    fitter = AdapterFitter(*tiny_pair(torch.float32), settings=FitSettings(min_words=16))
    fitter.update(WORDS)
    table = fitter.table
    table.save(tmp_path / "a table")
    return fitter, table, tmp_path / "a table"


def test_round_trip(saved):
    fitter, table, folder = saved
    loaded = JacobianTable.load(folder, fitter.fingerprint)
    assert loaded.reports == table.reports
    assert (loaded.max_tokens, loaded.left_out) == (table.max_tokens, table.left_out)
    assert loaded.settings["min_words"] == 16
    for key, jacobian in table.jacobians.items():
        assert torch.equal(loaded.jacobians[key], jacobian)
    assert {f.name for f in folder.iterdir()} == {"table.json", "table.safetensors"}


def test_low_rank_round_trip_is_smaller(tmp_path, saved):
    folder = saved[2]
    low = fit_adapter(
        *tiny_pair(torch.float32), words=WORDS, settings=FitSettings(min_words=16, rank=1)
    )
    low.save(tmp_path / "low")
    loaded = JacobianTable.load(tmp_path / "low", low.fingerprint)
    for key, jacobian in low.jacobians.items():
        assert_close(loaded.jacobians[key], jacobian)
    sizes = [(f / "table.safetensors").stat().st_size for f in (tmp_path / "low", folder)]
    assert sizes[0] < sizes[1]


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
    fitter, _, folder = saved
    expected = {**fitter.fingerprint, part: "0" * 64}
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
    fitter, _, folder = saved
    content = bytearray((folder / "table.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "table.safetensors").write_bytes(content)
    with pytest.raises(FingerprintError, match="damaged"):
        JacobianTable.load(folder, fitter.fingerprint)


def test_incomplete_or_foreign_folders_are_refused(saved, tmp_path):
    fitter, _, folder = saved
    with pytest.raises(FingerprintError, match="no complete table"):
        JacobianTable.load(tmp_path / "nothing", fitter.fingerprint)
    facts = json.loads((folder / "table.json").read_text())
    (folder / "table.json").write_text(json.dumps({**facts, "format": 99}))
    with pytest.raises(FingerprintError, match="format 99, expected 1"):
        JacobianTable.load(folder, fitter.fingerprint)
    (folder / "table.json").write_text("{")
    with pytest.raises(FingerprintError, match="no complete table"):
        JacobianTable.load(folder, fitter.fingerprint)


def test_full_tubal_rank_changes_nothing():
    jacobian = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(0))
    left, right = tubal_factors(jacobian, 3)
    assert left.shape == (4, 3, 4)
    from fuseprompt.tensor import t_product

    assert_close(t_product(left, right), jacobian)


def test_golden_file_of_format_1_loads_in_every_version():
    """Written by version 0.1.0; must never be written anew."""
    folder = Path(__file__).parent / "golden"
    table = JacobianTable.load(folder, {"primary_tokenizer": "a" * 64})
    assert table.jacobians[1, 1].flatten().tolist() == [1.0, 2.0, 3.0, 4.0]
    assert torch.equal(table.jacobians[1, 2], torch.arange(8.0).reshape(2, 2, 2) / 8)
    assert table.reports[1, 2].ridge == 0.3
    assert (table.max_tokens, table.rank, table.is_shared) == (4, None, False)
