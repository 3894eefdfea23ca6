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


def test_the_page_on_searching_keeps_to_its_rules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "searching.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "page.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    ran = runpy.run_path("page.py")
    result = ran["result"]
    assert capsys.readouterr().out == f"{result.text} 0.0\n"
    assert len(result.text.split()) <= 12
    assert "password" not in result.text.lower()
    assert result.terms["fluency"] <= 6.0
    (start,) = ran["objective"].bind([ran["problem"]]).evaluate([ran["problem"].start], [0])
    assert (result.violation, result.loss) < (start.violation, start.loss)
    assert (tmp_path / "mail.safetensors").exists()


def test_the_extensions_of_the_page_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "page.py").write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    ran = runpy.run_path("page.py")
    assert len(blocks) == 3
    grown, shorter, found = capsys.readouterr().out.splitlines()
    assert grown.startswith("The sea")
    assert len(shorter.split()) < len(ran["start"].split())
    assert set(shorter.lower().split()) <= set(ran["start"].lower().split())
    assert ran["found"].terms["similarity"] < 0.7
    assert found == ran["found"].text


def test_the_example_of_elicit_finds_a_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    runpy.run_path("examples/elicit.py")
    text, red, sweet = capsys.readouterr().out.splitlines()
    assert not re.search(r"\b(red|sweet)\b", text, re.IGNORECASE)
    for line in (red, sweet):
        assert int(re.search(r"choice (\d+) of offline:lm", line)[1]) <= 100  # type: ignore[index]
    assert len((ROOT / "examples" / "elicit.py").read_text().splitlines()) <= 40


def test_the_example_of_a_rewrite_turns_reviews_around(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "rewrite.py"))
    lines = capsys.readouterr().out.splitlines()
    texts = [line for line in lines if not line.startswith("  ")]
    assert [text.split()[1] for text in texts] == ["soup", "hotel"]
    assert not any(word in line for line in texts for word in ("not found", "rude", "dirty"))
    assert sum(" -> " in line for line in lines) >= 2
