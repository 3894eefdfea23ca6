"""The transfers by name, and the one that is fitted when it is first needed."""

from pathlib import Path

import pytest

from fuseprompt.cli.parser_base import TRANSFERS
from fuseprompt.errors import ProblemError
from fuseprompt.search.autodan import AutoDAN
from fuseprompt.search.engine import minimize
from fuseprompt.search.proposers import TransferProposer
from fuseprompt.tasks.transfers import TRANSFER_NAMES, USE_WORD_TABLE, transfer_named
from fuseprompt.transfer import cache
from tests.search.fixtures import objective, problems
from tests.transfer.tiny import made_up_words


def test_the_command_line_knows_the_same_names() -> None:
    assert TRANSFERS == TRANSFER_NAMES
    names = [transfer_named(name).name for name in TRANSFER_NAMES]
    # "best" stands for what was measured to be the best.
    assert names == [*TRANSFER_NAMES[:-1], "anchored-words"]


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(ProblemError, match="'gradient': expected one of none, random"):
        transfer_named("gradient")


@pytest.mark.parametrize("name", TRANSFER_NAMES)
def test_each_one_can_search(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "default_words", lambda: tuple(made_up_words(900)))
    told: list[str] = []
    transfer = transfer_named(name, on_making=lambda what, done, total: told.append(what))
    method = AutoDAN(steps=2, proposer=TransferProposer(transfer, search_width=4))
    (result,) = minimize(objective(), method, problems()[0])
    assert result.text.startswith("An image of")
    tables = {n: {"word table"} for n in USE_WORD_TABLE}
    frames = {n: {"frame table"} for n in ("frames", "anchored", "blend")}
    expected = {**tables, **frames, "tproduct": {"maps"}}
    assert set(told) == expected.get(name, set())
    told.clear()
    (again,) = minimize(objective(), method, problems()[0])
    assert told == []  # Tables are on disk now.
    assert again.text == result.text
