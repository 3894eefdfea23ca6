"""The tutorials run as scripts and do what their text says."""

import json
import re
import runpy
from functools import partial
from pathlib import Path

import pytest

from fuseprompt.tasks.models import load_models
from fuseprompt.tasks.rewrite import objective_of
from tests.tiny import classifier, clip, gpt2, sentence_encoder

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.offline


def run_notebook(path: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Run the code of a notebook, one cell after another; return what each prints, and shows."""
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    space: dict[str, object] = {}
    printed = []
    for cell in cells:
        exec(compile("".join(cell["source"]), path.name, "exec"), space)
        shown = "".join(line for out in cell["outputs"] for line in out["text"])
        printed.append((capsys.readouterr().out, shown))
    return printed


def test_the_notebook_of_the_first_five_minutes_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With tiny models, for time; what it shows is checked with the real ones below."""
    models = {"lm": gpt2, "image-text": clip, "sentiment": classifier, "sentence": sentence_encoder}

    def tiny_model(name: str, **_: object) -> object:
        return models[name.removeprefix("offline:")]()

    monkeypatch.setattr("fuseprompt.models.hub.load", tiny_model)
    for place, function in (("caption", load_models), ("rewrite", objective_of)):
        name = f"fuseprompt.tasks.{place}.{function.__name__}"
        monkeypatch.setattr(name, partial(function, load=tiny_model))
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    monkeypatch.chdir(ROOT / "docs")
    captioned, searched, ruled, rewritten = run_notebook(Path("start.ipynb"), capsys)
    assert "'fluency': " in captioned[0]
    steps = [line.split(" ")[0] for line in searched[0].splitlines()]
    assert steps[0] == "1"
    assert steps[-1] == "An"
    assert ruled[0].startswith("An image of")
    assert re.search(r" \[.*\]\n$", rewritten[0])


@pytest.mark.slow
def test_the_notebook_shows_what_the_offline_models_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT / "docs")
    for printed, shown in run_notebook(Path("start.ipynb"), capsys):
        assert printed == shown


@pytest.mark.slow
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


@pytest.mark.slow
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
