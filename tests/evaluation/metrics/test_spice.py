"""SPICE runs where CoreNLP is, and says what is missing elsewhere."""

import json
import os
from pathlib import Path

import pytest

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics.base import Unavailable
from fuseprompt.evaluation.metrics.overlap import Words
from fuseprompt.evaluation.metrics.spice import find_corenlp, spice
from tests.evaluation.metrics.tools import fake_java, needs_tools, real_tools

WORDS = Words({"7": "a red kite", "9": ""}, {"7": ("a kite",), "9": ("a dog", "a cat")})


def jars(folder: Path) -> Path:
    """Return a folder with files of the names of CoreNLP's jars."""
    folder.mkdir(parents=True)
    for name in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
        (folder / name).touch()
    return folder


def answering(scores: list[object]) -> str:
    """Return a script that writes a line per call and these scores."""
    rows = [{"image_id": i, "scores": {"All": {"f": f}}} for i, f in enumerate(scores)]
    return f"echo \"$@\" >> calls; cat > scores.json <<'END'\n{json.dumps(rows)}\nEND\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))


def test_corenlp_is_found_in_its_folder_or_in_the_one_around_it(tmp_path: Path) -> None:
    inner = jars(tmp_path / "stanford-corenlp-full-2015-12-09")
    assert find_corenlp(inner) == inner
    assert find_corenlp(tmp_path) == inner


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    found = find_corenlp(None)
    assert isinstance(found, Unavailable)
    assert "--spice-folder DIR" in found.reason
    (tmp_path / "stanford-corenlp-3.6.0.jar").touch()
    found = find_corenlp(tmp_path)
    assert isinstance(found, Unavailable)
    assert "lacks stanford-corenlp-3.6.0-models.jar" in found.reason


@pytest.mark.parametrize(("version", "opened"), [("17.0.1", 6), ("1.8.0_292", 0)])
def test_the_mean_over_images_and_the_flags_of_newer_javas(
    tmp_path: Path, version: str, opened: int
) -> None:
    log = tmp_path / "calls"
    script = answering([0.5, None]).replace("calls", str(log)).replace("null", "NaN")
    java = fake_java(tmp_path, script, version=version)
    corenlp = jars(tmp_path / "core nlp")
    assert spice(WORDS, java, Path("lib"), corenlp) == 0.25
    (call,) = log.read_text().splitlines()
    assert call.count("--add-opens=java.base/java.") == opened
    assert f"{corenlp}/stanford-corenlp-3.6.0-models.jar" in call
    assert f"-cache {tmp_path}/cache/spice-v1" in call


def test_where_parses_cannot_be_kept_it_runs_without(tmp_path: Path) -> None:
    script = 'case "$*" in *-cache*) echo UnsatisfiedLinkError >&2; exit 1;; esac\n'
    java = fake_java(tmp_path, script + answering([0.5, 0.1]))
    assert spice(WORDS, java, Path("lib"), jars(tmp_path / "nlp")) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'java.lang.NoClassDefFoundError: x/Y' >&2; exit 1", "NoClassDefFoundError: x/Y"),
        ("echo '[]' > scores.json", "scored 0 images, expected 2"),
        ("echo '[{]' > scores.json", "no scores that can be read"),
        ("true", "no scores that can be read"),
    ],
)
def test_faults_are_sentences(tmp_path: Path, script: str, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        spice(WORDS, fake_java(tmp_path, script), Path("lib"), jars(tmp_path / "nlp"))


@needs_tools
@pytest.mark.slow
@pytest.mark.skipif("FUSEPROMPT_CORENLP" not in os.environ, reason="needs CoreNLP 3.6.0")
def test_the_real_program() -> None:
    corenlp = find_corenlp(Path(os.environ["FUSEPROMPT_CORENLP"]))
    assert isinstance(corenlp, Path)
    java, library = real_tools()
    perfect = Words({"1": "a red kite"}, {"1": ("a red kite",)})
    assert spice(perfect, java, library, corenlp) == 1.0


@needs_tools
def test_the_real_program_without_its_parser_says_what_is_missing(tmp_path: Path) -> None:
    java, library = real_tools()
    with pytest.raises(MetricError, match=r"edu\.stanford\.nlp\.semgraph"):
        spice(WORDS, java, library, jars(tmp_path / "empty jars"))
