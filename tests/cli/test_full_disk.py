"""A disk that becomes full, under `--out` or the output: one sentence, and what was done is kept.

Files that may not become longer are a full disk without one: the system refuses the write.
"""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fuseprompt.cache import write_atomically
from fuseprompt.cli.main import main
from tests.tasks.fixtures import save_models, save_pictures

SMALL = ("--max-tokens", "1", "--beam-width", "1", "--search-width", "4", "--group-size", "1")


@contextmanager
def room(num_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a number of bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("inputs")
    pictures = save_pictures(folder / "pictures", "a.png", "b.png", "c.png")
    return [*pictures, "--models", str(save_models(folder)), *SMALL]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))


def test_what_fits_into_the_out_file_is_kept_in_whole_lines(inputs, tmp_path, capfd) -> None:
    out = tmp_path / "captions.jsonl"
    assert main(["caption", *inputs, "--out", str(out), "--quiet"]) == 0
    lines = out.read_text().splitlines()
    size = sum(len(line) + 1 for line in lines[:2]) + len(lines[2]) // 2
    with room(size):
        assert main(["caption", *inputs, "--out", str(out), "--quiet"]) == 1
    printed = capfd.readouterr()
    assert printed.err == (
        f"error: --out {out}: cannot be written (File too large). The results before are safe in "
        "it. Make room, or choose another file.\n"
    )
    kept = [json.loads(line)["caption"] for line in out.read_text().splitlines()]
    assert kept == [json.loads(line)["caption"] for line in lines[:2]]
    assert printed.out.count("c.png") == 2  # The third result was printed all the same.


def test_a_full_output_is_a_sentence_and_the_out_file_has_the_result(
    inputs, tmp_path, capfd
) -> None:
    out = tmp_path / "captions.jsonl"
    os.write(1, b"x" * 5000)
    with room(5000):
        assert main(["caption", *inputs, "--out", str(out), "--json"]) == 1
    message = "error: the output cannot be written (File too large); what was printed is whole. "
    assert message in capfd.readouterr().err
    assert len(out.read_text().splitlines()) == 1


@pytest.mark.parametrize("argv", [["doctor"], ["--help"]])
def test_every_command_survives_a_full_output(argv, capfd) -> None:
    os.write(1, b"x" * 1000)
    with room(1000):
        assert main(argv) == 1
    assert "error: the output cannot be written" in capfd.readouterr().err


def test_a_fit_whose_folder_is_full_names_the_file(inputs, tmp_path, capfd, monkeypatch) -> None:
    models = Path(inputs[inputs.index("--models") + 1]).parent
    argv = ["--primary", str(models / "lm"), "--secondary", str(models / "clip"), "--quiet"]
    with room(1000):
        assert main(["fit", *argv, "--out", str(tmp_path / "fit")]) == 1
    printed = capfd.readouterr().err.splitlines()[-1]
    assert printed.startswith(f"error: {tmp_path / 'fit'}")
    assert printed.endswith(
        "cannot be read or written (File too large). Make room, or choose another place."
    )


@pytest.mark.parametrize("content", [b"x" * 20, "x" * 20, lambda path: path.write_text("x" * 20)])
def test_a_file_that_has_no_room_is_named(content, tmp_path) -> None:
    with room(10), pytest.raises(OSError, match="File too large") as refused:
        write_atomically(tmp_path / "a", content)
    assert refused.value.filename == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
