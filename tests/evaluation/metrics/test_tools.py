"""The stand-ins do what they say."""

from pathlib import Path

import pytest

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics.java import find_java, run_java
from tests.evaluation.metrics.tools import fake_java, light_library, needs_tools, real_tools


def test_a_fake_java_answers_and_fails_as_its_script_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = fake_java(tmp_path, "exit 3", version="11")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == java
    with pytest.raises(MetricError, match="exit code 3"):
        run_java(java, [], folder=tmp_path, timeout=10.0, heap=300)


@needs_tools
def test_a_light_library_has_the_same_programs(tmp_path: Path) -> None:
    _, library = real_tools()
    light = light_library(tmp_path / "light", library)
    jar = Path("meteor") / "meteor-1.5.jar"
    assert (light / jar).read_bytes() == (library / jar).read_bytes()
    assert (light / "meteor/data/paraphrase-en.gz").stat().st_size < 100
