"""The tutorials run as scripts and do what their text says."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.offline


def test_the_custom_term_keeps_a_text_away_from_its_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    runpy.run_path("docs/tutorial_custom_term.py")
    near, far, free, kept_away = capsys.readouterr().out.splitlines()
    assert float(near.split()[0]) > 0.3
    assert float(far.split()[0]) == 0.0
    assert "cat" in free
    assert not re.search(r"\bcats?\b", kept_away)
    assert float(re.search(r"elsewhere ([\d.]+)", kept_away)[1]) < 0.2  # type: ignore[index]
