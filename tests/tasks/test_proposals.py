"""The proposals by name, and the one that is fitted when it is first needed."""

from pathlib import Path
from typing import get_args

import pytest

from fuseprompt.errors import ProblemError
from fuseprompt.fuse import fit
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.search.minimize import describe, minimize
from fuseprompt.tasks.caption import method_of
from fuseprompt.tasks.models import proposal_named
from fuseprompt.tasks.settings import CaptionSettings, ProposalName
from tests.fuse.tiny import made_up_words
from tests.methods.fixtures import objective, problems


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(ProblemError, match="'magic': expected one of none, random"):
        proposal_named("magic")


@pytest.mark.parametrize("name", get_args(ProposalName))
def test_each_one_can_search(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    monkeypatch.setattr(fit, "default_words", lambda: tuple(made_up_words(900)))
    told: list[str] = []
    proposal = proposal_named(name, lambda what, done, total: told.append(what))
    method = AutoDAN(steps=2, proposal=proposal, search_width=4)
    (result,) = minimize(objective(), method, problems()[0])
    assert result.text.startswith("An image of")
    expected = {"word-table": {"word table"}, "additive": {"word table"}, "fuse": {"maps"}}
    assert set(told) == expected.get(name, set())
    told.clear()
    (again,) = minimize(objective(), method, problems()[0])
    assert told == []  # Tables are on disk now.
    assert again.text == result.text


def test_python_and_the_command_line_search_alike_by_default() -> None:
    assert describe(method_of(CaptionSettings())) == describe(AutoDAN())
