"""`fuseprompt evaluate` and `merge`, with tiny models and, once, with the offline ones.

Most runs work in this process: starting one that imports torch costs seconds.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuseprompt.cli import evaluate, reproduce
from fuseprompt.cli.bar import describe_seconds
from fuseprompt.cli.main import COMMANDS, main
from fuseprompt.cli.options import parse
from fuseprompt.evaluation.runs import workers
from fuseprompt.evaluation.runs.folder import read_run
from fuseprompt.objective.problem import Problem
from fuseprompt.tasks.caption import objective_of
from fuseprompt.tasks.models import load_models
from fuseprompt.tasks.settings import CaptionSettings
from tests.evaluation.runs.fakes import InlineWorker, captions_of
from tests.tasks.fixtures import save_models, save_pictures

PHOTOS = Path(__file__).parents[2] / "examples" / "photos"
SMALL = ("--max-tokens", "2", "--beam-width", "2", "--search-width", "4", "--proposal", "gradient")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_models(tmp_path_factory.mktemp("models")))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FUSEPROMPT_MODELS", raising=False)
    # Worker processes import these tests' models, and must not show progress of their own.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # Without Java, which takes half a minute for METEOR on a busy machine and has its own tests.
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in this process."""
    monkeypatch.setattr(workers, "LocalWorker", InlineWorker)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of six pictures with what people wrote."""
    names = [f"{n}.png" for n in range(6)]
    save_pictures(tmp_path / "data", *names)
    lines = [{"image": name, "captions": [f"A picture of {name}.", "A colour."]} for name in names]
    (tmp_path / "data" / "captions.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    return tmp_path / "data"


def command(data: Path, out: Path, models: str, *more: str) -> list[str]:
    return [
        "evaluate", "folder", "--root", str(data), "--out", str(out), "--models", models,
        "--threads", "1", *SMALL, *more,
    ]  # fmt: skip


@pytest.mark.usefixtures("inline")
def test_a_run_in_bfloat16_says_so_and_has_losses_of_fp32(
    data: Path, models: str, tmp_path: Path
) -> None:
    main(command(data, tmp_path / "plain", models, "--limit", "1", "--quiet", "--no-score"))
    out = tmp_path / "run"
    more = ("--dtype", "bfloat16", "--limit", "2", "--quiet", "--no-score")
    assert main(command(data, out, models, *more)) == 0
    run = read_run(out)
    assert run.settings.search["dtype"] == "bfloat16"
    assert "dtype" not in read_run(tmp_path / "plain").settings.search
    objective = objective_of(CaptionSettings(), load_models(models, device="cpu"))
    assert len(run.captions) == 2
    for (name, _), found in run.captions.items():
        problem = Problem("0", {"image": data / name}, CaptionSettings().prefix)
        (exact,) = objective.bind([problem]).evaluate([found.text], [0])
        assert found.terms == pytest.approx(exact.terms, abs=1e-5)


def test_a_dataset_becomes_captions_scores_and_a_report(
    inline, data, tmp_path, models, capsys
) -> None:
    out = tmp_path / "run"
    assert main(command(data, out, models, "--json", "--check-grouping")) == 0
    printed = capsys.readouterr()
    (line,) = (json.loads(text) for text in printed.out.splitlines())
    assert (line["captions"], line["failures"], line["missing"]) == (6, 0, 0)
    assert line["scores"][""]["coverage"] == 1.0
    assert line["grouping"]["num_captions"] == 6
    assert line["grouping"]["largest_difference"] <= 1e-5
    names = {path.name for path in out.iterdir()}
    assert {"report.md", "gallery.html", "scores.json", "grouping.json"} <= names
    assert "note: the published metrics will be missing: " in printed.err
    run = read_run(out)
    assert run.settings.search["weights"] == {"fluency": 1.0, "image": 12.0}
    assert [r.group for r in run.records.values()][4:] == [("4.png", "5.png")] * 2
    # Shards, merged, are the same.
    for index in ("1/2", "2/2"):
        folder = str(tmp_path / index[0])
        assert main(command(data, Path(folder), models, "--shard", index, "--quiet")) == 0
    capsys.readouterr()
    merged = tmp_path / "merged"
    folders = [str(tmp_path / "2"), str(tmp_path / "1")]
    assert main(["merge", *folders, "--out", str(merged), "--json"]) == 0
    (line,) = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert (line["captions"], line["missing"]) == (6, 0)
    assert line["scores"] == json.loads((out / "scores.json").read_text())
    assert captions_of(merged) == captions_of(out)
    # Merged in place, with the dataset gone.
    assert main(["merge", str(merged), "--root", str(tmp_path / "none")]) == 0
    assert "no scores and no report" in capsys.readouterr().err


def test_a_wrong_folder_for_spice_is_noted_before_the_work(
    inline, data, tmp_path, models, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("fuseprompt.evaluation.metrics.coco_tools.library_folder", lambda: tmp_path)
    monkeypatch.setattr("fuseprompt.evaluation.metrics.coco_tools.find_java", lambda: None)
    (tmp_path / "run").write_text("")  # So that no work begins.
    assert main(command(data, tmp_path / "run", models, "--spice-folder", "nowhere")) == 1
    noted = capsys.readouterr().err
    assert "note: SPICE will be missing: " in noted
    assert "nowhere" in noted


def test_without_json_it_is_for_people(inline, data, tmp_path, models, capsys) -> None:
    (data / "3.png").write_bytes(b"")
    assert main(command(data, tmp_path / "run", models, "--no-score")) == 1
    printed = capsys.readouterr()
    first, second, *_, last = printed.out.splitlines()
    assert first.endswith("run: 5 of 6 captions")
    assert second.startswith("  failed: 3.png: ")
    assert last == f"Report: {tmp_path / 'run' / 'report.md'}"
    assert printed.err.startswith("note: ") or printed.err.startswith("Models: ")
    assert main(command(data, tmp_path / "run", models, "--resume", "--quiet", "--no-score")) == 1
    assert capsys.readouterr().err == ""


def test_progress_has_pace_and_time_left(
    inline, data, tmp_path, models, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("fuseprompt.cli.evaluate.LINE_SECONDS", 0.0)
    assert main(command(data, tmp_path / "run", models, "--no-score")) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "captions" in line]
    assert re.fullmatch(r"4/6 captions, [\d,]+ an hour, \d+ (s|min) left", lines[0])
    assert lines[-1].startswith("6/6 captions, ")


def test_options_come_from_a_file(inline, data, tmp_path, models) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        f"dataset: folder\nroot: {data}\nmodels: {models}\nmax_tokens: 1\nlimit: 2\nbeam_width: 2\n"
        "search_width: 4\nproposal: gradient\nweight: [image=3]\nthreads: 1\nno_score: true\n"
    )
    out = tmp_path / "run"
    assert main(["evaluate", "--config", str(config), "--out", str(out), "--quiet"]) == 0
    run = read_run(out)
    assert len(run.captions) == 2
    assert run.settings.search["max_tokens"] == 1
    assert run.settings.search["weights"]["image"] == 3.0


def test_steps_is_a_second_spelling_of_max_tokens(capsys) -> None:
    for command, kind in (("evaluate", evaluate.Options), ("reproduce", reproduce.Options)):
        argv = ("coco", "--root", "data", "--out", "run", "--steps", "3")
        assert parse(kind, argv, command=command).evaluation.settings.max_tokens == 3
    for command in set(COMMANDS) - {"evaluate", "reproduce"}:
        assert main([command, "--steps", "3"]) == 2
        assert "--steps: not expected here" in capsys.readouterr().err


def test_every_sentiment_is_captioned(inline, data, tmp_path, models) -> None:
    more = ("--sentiment", "both", "--limit", "1", "--no-score", "--quiet")
    assert main(command(data, tmp_path / "run", models, *more)) == 0
    run = read_run(tmp_path / "run")
    assert list(run.captions) == [("0.png", "negative"), ("0.png", "positive")]
    assert "sentiment" in run.settings.models
    assert "sentiment" in run.settings.search["weights"]


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--shard", "3/2"), 1, "expected i/n with i from 1 to n"),
        (("--sentiment", "glad"), 1, "no label 'glad'; its labels are"),
        (("--split", "none"), 1, "'none' is no split of folder"),
        (("--weight", "tone=1"), 2, "no term 'tone'"),
        (("--limit", "0"), 2, "--limit 0: expected a whole number above 0 and below"),
        (("--max-failures", "-1"), 2, "--max-failures"),
        (("--executor", "slurm"), 2, "expected one of local, ray"),
    ],
)
def test_what_cannot_be_is_refused(
    inline, data, tmp_path, models, capsys, more, code, words
) -> None:
    assert main(command(data, tmp_path / "run", models, *more)) == code
    assert words in capsys.readouterr().err


def test_what_is_missing_is_named(tmp_path, capsys, monkeypatch, models, data) -> None:
    assert main(["evaluate", "--out", str(tmp_path / "run"), "--root", "x"]) == 2
    assert "DATASET is required" in capsys.readouterr().err
    assert main(["merge", "a", "b"]) == 2
    assert "--out RUN is required" in capsys.readouterr().err
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "empty"))
    assert main(command(data, tmp_path / "run", "offline", "--quiet")) == 1
    assert "fuseprompt prepare" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()  # Nothing was begun.
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(command(data, tmp_path / "run", models, "--quiet", "--executor", "ray")) == 1
    assert 'pip install "fuseprompt[ray]"' in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    out = str(tmp_path / "run")
    assert main(["evaluate", "folder", "--root", str(tmp_path / "none"), "--out", out]) == 1
    assert "none" in capsys.readouterr().err


def start(arguments: list[str]) -> "subprocess.Popen[str]":
    code = "import sys; from fuseprompt.cli.main import main; sys.exit(main(sys.argv[1:]))"
    # What a shell starts in the background ignores SIGINT, and so would this.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    return subprocess.Popen(
        [sys.executable, "-c", listen + code, *arguments], stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_signal_ends_a_run_in_good_order(tmp_path, models, number, code) -> None:
    save_pictures(tmp_path / "data", *(f"{n:03}.png" for n in range(300)))
    out = tmp_path / "run"
    arguments = command(tmp_path / "data", out, models, "--no-score", "--group-size", "1")
    journal = out / "journal.jsonl"
    with start(arguments) as process:
        end = time.monotonic() + 60
        while not (journal.exists() and journal.stat().st_size):
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in err
    num_safe = len(read_run(out).captions)
    assert 0 < num_safe < 300
    assert f"stopped: {num_safe} captions are safe in {out}; go on with --resume" in err


def test_times_are_shown_as_people_write_them() -> None:
    assert [describe_seconds(s) for s in (10.0, 120.0, 3599.0, 3900.0, 4e5)] == [
        "10 s", "2 min", "1 h 00 min", "1 h 05 min", "111 h 07 min",
    ]  # fmt: skip


@pytest.mark.offline
@pytest.mark.slow
def test_the_offline_models_killed_and_resumed_write_the_same_bytes(tmp_path) -> None:
    def arguments(out: Path) -> list[str]:
        return [
            "evaluate", "folder", "--root", str(PHOTOS), "--out", str(out), "--threads", "1",
            "--max-tokens", "3", "--search-width", "16", "--group-size", "2", "--no-score",
            "--resume", "--quiet", "--limit", "5",
        ]  # fmt: skip

    assert main(arguments(tmp_path / "whole")) == 0
    journal = tmp_path / "run" / "journal.jsonl"
    with start(arguments(tmp_path / "run")) as process:
        while not (journal.exists() and journal.stat().st_size):
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    assert len(read_run(tmp_path / "run").captions) < 5
    assert main(arguments(tmp_path / "run")) == 0
    assert captions_of(tmp_path / "run") == captions_of(tmp_path / "whole")
