"""Tables are found again, and never for anything else."""

import pytest
import torch

from fuseprompt.transfer import cache
from fuseprompt.transfer.cache import load_or_fit
from fuseprompt.transfer.fit import FitSettings
from tests.transfer.tiny import made_up_words, tiny_pair

SETTINGS = FitSettings(min_words=16)


@pytest.fixture(autouse=True)
def few_words(monkeypatch):
    """Keep the fit short."""
    words = tuple(made_up_words(300))
    monkeypatch.setattr(cache, "default_words", lambda: words)


def test_second_call_fits_nothing_and_returns_the_same(tmp_path):
    fitted = []
    models = tiny_pair(torch.float32)
    first, second = (
        load_or_fit(
            *models,
            settings=SETTINGS,
            folder=tmp_path,
            on_case=lambda key, _report, _done, _of: fitted.append(key),
        )
        for _ in range(2)
    )
    assert fitted == list(first.jacobians)
    assert all(torch.equal(first.jacobians[key], second.jacobians[key]) for key in fitted)
    assert len(list(tmp_path.iterdir())) == 1


def test_other_settings_or_models_get_a_table_of_their_own(tmp_path):
    primary, secondary = tiny_pair(torch.float32)
    load_or_fit(primary, secondary, settings=SETTINGS, folder=tmp_path)
    load_or_fit(primary, secondary, settings=FitSettings(min_words=17), folder=tmp_path)
    secondary.vocabulary[0, 0] += 1
    load_or_fit(primary, secondary, settings=SETTINGS, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_half_written_table_is_fitted_anew(tmp_path):
    models = tiny_pair(torch.float32)
    first = load_or_fit(*models, settings=SETTINGS, folder=tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / "table.safetensors").write_bytes(b"half")
    again = load_or_fit(*models, settings=SETTINGS, folder=tmp_path)
    assert all(torch.equal(first.jacobians[k], again.jacobians[k]) for k in first.jacobians)
    assert (folder / "table.safetensors").stat().st_size > 4
