"""The stand-ins do what they say."""

from pathlib import Path

import pytest

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics import coco_tools
from tests.evaluation.metrics.tools import LIBRARY, fake_java, needs_library, use_light_library


def test_a_fake_java_answers_and_fails_as_its_script_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fake_java(tmp_path, "exit 3", monkeypatch) == coco_tools.find_java()
    with pytest.raises(MetricError, match="exit code 3"):
        coco_tools.run_java([], {}, heap=300, timeout=10.0)


@needs_library
def test_a_light_library_has_the_same_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    light = use_light_library(tmp_path / "light", monkeypatch)
    assert light == coco_tools.library_folder()
    assert light is not None
    assert LIBRARY is not None
    jar = Path("meteor") / "meteor-1.5.jar"
    assert (light / jar).read_bytes() == (LIBRARY / jar).read_bytes()
    assert (light / "meteor/data/paraphrase-en.gz").stat().st_size < 100
