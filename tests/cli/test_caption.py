"""`fuseprompt caption` in the process, with tiny models from a YAML file."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from fuseprompt.cli.bar import Bar
from fuseprompt.cli.caption import Options, preset, record
from fuseprompt.cli.main import main
from fuseprompt.cli.options import parse
from fuseprompt.search.minimize import Progress, describe
from fuseprompt.tasks.caption import caption
from fuseprompt.tasks.models import proposal_named
from fuseprompt.tasks.settings import (
    SENTIMENT_TEMPERATURE,
    CaptionSettings,
    ModelIds,
    ProposalName,
)
from fuseprompt.text.tokenizer import Tokenizer
from tests.models.test_image_metadata import TURNED, jpeg
from tests.tasks.fixtures import save_models, save_pictures

KEYS = [
    "image",
    "caption",
    "text",
    "loss",
    "terms",
    "settings",
    "versions",
    "seed",
    "seconds",
    "token_ids",
    "tokens",
    "finished",
    "missing",
    "fast_path",
]

SMALL = ("--max-tokens", "2", "--beam-width", "2", "--search-width", "4", "--proposal", "gradient")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_models(tmp_path_factory.mktemp("models")))


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test an empty cache and the default configuration."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FUSEPROMPT_MODELS", raising=False)


class Output:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], models: str):
    """Return a function that captions with tiny models."""

    def run(*args: str, options: Sequence[str] = SMALL) -> Output:
        code = main(["caption", "--models", models, *options, *args])
        printed = capsys.readouterr()
        return Output(code, printed.out, printed.err)

    return run


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run a command line that must end as a usage error; return what it said."""
    try:
        code = main(["caption", *args])
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return printed.err


def test_json_is_one_line_per_image_with_exactly_the_keys(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "b c.png", "ä.png")
    output = run(*files, "--json", "--seed", "3")
    assert output.code == 0
    assert [line["image"] for line in output.lines] == files
    for line in output.lines:
        assert list(line) == KEYS
        assert list(line["terms"]) == ["fluency", "image"]
        weights = line["settings"]["weights"]
        total = sum(weights[name] * value for name, value in line["terms"].items())
        assert abs(total - line["loss"]) < 1e-4
        assert line["seed"] == 3
        assert "".join(line["tokens"]) == line["text"]
    assert "ä.png" in output.out  # readable, not escaped


def test_without_json_it_is_for_people(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png")
    output = run(*files)
    image, text, facts = output.out.splitlines()
    assert image == files[0]
    assert text.startswith("  An image of ")
    assert "fluency" in facts
    assert output.err.startswith("Models: ")
    assert "--models offline" in output.err


def test_quiet_prints_results_and_errors_only(run, tmp_path) -> None:
    output = run(*save_pictures(tmp_path, "a.png"), str(tmp_path / "none.png"), "--quiet")
    assert output.code == 1
    assert len(output.out.splitlines()) == 3
    assert output.err.startswith("error: ")
    assert len(output.err.splitlines()) == 1


def test_a_failure_costs_one_line_and_exit_code_1(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png", "c.png")
    empty = tmp_path / "empty"
    empty.mkdir()
    output = run(files[0], str(tmp_path / "none.png"), str(empty), files[1], "--json")
    assert output.code == 1
    assert [list(line) == KEYS for line in output.lines] == [True, False, False, True]
    for line, name in zip(output.lines[1:3], ("none.png", "empty"), strict=True):
        assert list(line) == ["image", "error"]
        assert str(line["image"]).endswith(name)
        assert f"error: {line['error']}" in output.err


def test_an_empty_folder_alone_is_an_error(run, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    output = run(str(tmp_path / "empty"))
    assert output.code == 1
    assert output.out == ""
    assert "the folder has no image files" in output.err


def test_only_unreadable_images_fail_before_any_model_is_loaded(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fuseprompt.tasks.caption.load_models", None)
    output = run(str(tmp_path / "none.png"), "", "--json")
    assert output.code == 1
    assert [line["image"] for line in output.lines] == [str(tmp_path / "none.png"), ""]
    assert "no such file" in output.err
    assert "An image was named ''" in output.err


def test_a_folder_is_captioned_in_name_order(run, tmp_path) -> None:
    save_pictures(tmp_path / "many", "b.png", "a.png")
    output = run(str(tmp_path / "many"), "--json")
    assert [Path(str(line["image"])).name for line in output.lines] == ["a.png", "b.png"]


def test_what_a_folder_leaves_alone_is_said_once(run, tmp_path) -> None:
    save_pictures(tmp_path / "many", "b.png", "a.png")
    for name in ("c.heic", "._a.png"):
        (tmp_path / "many" / name).touch()
    output = run(str(tmp_path / "many"), "--json")
    assert output.code == 0
    assert len(output.lines) == 2
    assert output.err.count("left alone") == 1
    assert f"note: {tmp_path / 'many'}: left alone: 1 " in output.err
    assert "1 hidden" in output.err
    assert "left alone" not in run(str(tmp_path / "many"), "--json", "--quiet").err


def test_odd_metadata_and_a_pipe_end_no_group(run, tmp_path) -> None:
    (good,) = save_pictures(tmp_path, "good.png")
    odd = []
    for name in ("negative resolution", "resolution as bytes"):
        odd.append(tmp_path / f"{name}.jpg")
        odd[-1].write_bytes(jpeg(TURNED[name]))
    os.mkfifo(tmp_path / "pipe.png")
    output = run(*map(str, odd), str(tmp_path / "pipe.png"), good, "--json")
    assert output.code == 1
    assert [list(line) == KEYS for line in output.lines] == [True, True, False, True]
    assert "pipe.png: is a pipe or device, expected an image file" in output.lines[2]["error"]


def test_names_that_begin_with_a_dash_follow_two_dashes(run, tmp_path, monkeypatch) -> None:
    save_pictures(tmp_path, "-a.png")
    monkeypatch.chdir(tmp_path)
    output = run("--json", "--", "-a.png")
    assert output.code == 0
    assert [line["image"] for line in output.lines] == ["-a.png"]


def test_names_that_are_not_utf8_are_escaped(run, tmp_path) -> None:
    (plain,) = save_pictures(tmp_path, "a.png")
    odd = os.fsencode(tmp_path) + b"/\xff.png"
    Path(os.fsdecode(odd)).write_bytes(Path(plain).read_bytes())
    output = run(os.fsdecode(odd), "--json", "--out", str(tmp_path / "out.jsonl"))
    assert output.code == 0
    assert (tmp_path / "out.jsonl").read_text().startswith('{"image": "')


def test_out_gets_the_json_lines_too(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png")
    out = tmp_path / "out.jsonl"
    output = run(*files, str(tmp_path / "none.png"), "--out", str(out))
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [w["image"] for w in written] == [files[0], str(tmp_path / "none.png")]
    assert written[0]["text"] in output.out
    with_folder = run(*files, "--out", str(tmp_path / "no folder" / "out.jsonl"))
    assert with_folder.code == 1
    assert "cannot be written (No such file or directory)" in with_folder.err


def test_words_are_forbidden_and_required(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png")
    text = str(run(*files, "--json").lines[0]["text"])
    word = text.split()[3].strip(".!?")
    forbidden = str(run(*files, "--json", "--forbid", word, "--forbid", "x").lines[0]["text"])
    assert word not in forbidden.split()
    required = run(*files, "--json", "--require", "dog", "--require", "a")
    assert "dog" in str(required.lines[0]["text"])


def test_a_required_word_that_is_missing_has_a_key_and_exit_code_1(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png", "b.png")
    met = run(*files, "--json", "--require", "An", "--require", "image")
    assert (met.code, [line["missing"] for line in met.lines]) == (0, [[], []])
    for options in (("--json",), ("--json", "--quiet")):
        output = run(*files, "--require", "image", "--require", "zzzzzzzz", *options)
        assert output.code == 1
        assert [line["missing"] for line in output.lines] == [["zzzzzzzz"]] * 2
    assert run(*files, "--require", "zzzzzzzz", "--quiet").code == 1


def test_a_forbidden_word_of_the_prefix_is_an_error(run, tmp_path) -> None:
    output = run(*save_pictures(tmp_path, "a.png"), "--forbid", "IMAGE", "--quiet")
    assert (output.code, output.out) == (1, "")
    assert "The prefix 'An image of' has a forbidden word" in output.err


def test_a_required_word_that_was_not_reached_is_told(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png")
    output = run(*files, "--require", "dog", "--require", "zzzzzzzz", "--json")
    assert not output.lines[0]["finished"]
    assert f"note: {files[0]}: no finished caption with " in output.err
    assert "'zzzzzzzz'" in output.err
    assert "note" not in run(*files, "--require", "zzzzzzzz", "--quiet").err
    assert "note" not in run(*files).err


def test_weights_reach_the_loss(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png")
    output = run(*files, "--json", "--weight", "image=7", "--weight", "fluency=0")
    (line,) = output.lines
    assert line["settings"]["weights"] == {"fluency": 0.0, "image": 7.0}
    assert abs(line["loss"] - 7 * line["terms"]["image"]) < 1e-5


def test_a_sentiment_is_a_term_in_nats(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png")
    output = run(*files, "--json", "--sentiment", "positive", "--weight", "sentiment=4")
    (line,) = output.lines
    assert list(line["terms"]) == ["fluency", "image", "sentiment"]
    assert line["terms"]["sentiment"] > 0
    assert line["settings"]["weights"]["sentiment"] == 4.0


def test_a_sentiment_temperature_is_reported(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png")
    options = ("--json", "--sentiment", "positive", "--sentiment-temperature")
    for given, expected in (((*options, "2"), 2.0), (options[:-1], SENTIMENT_TEMPERATURE)):
        (line,) = run(*files, *given).lines
        assert line["settings"]["terms"]["sentiment"]["temperature"] == expected
        terms, weights = line["terms"], line["settings"]["weights"]
        assert line["loss"] == pytest.approx(sum(weights[n] * v for n, v in terms.items()), 1e-5)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--together",),
        ("--proposal", "random", "--num-captions", "3", "--max-tokens", "4"),
        ("--sentiment", "Negative", "--sentiment-temperature", "2", "--weight", "image=3"),
        ("--prefix", "A big", "--forbid", "cat", "--require", "dog", "--require", "a"),
    ],
)
def test_a_results_settings_and_seed_are_enough_to_run_it_again(options, run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png", "b.png")
    lines = run(*files, "--json", "--seed", "5", *options).lines
    told = lines[0]["settings"]
    assert told["device"] == "cpu"
    words = {rule["class"]: rule.get("words", []) for rule in told["constraints"]}
    (proposal,) = (
        name
        for name in get_args(ProposalName)
        if describe(proposal_named(name)) == told["proposal"]
    )
    labels = told["terms"].get("sentiment", {})
    same = {"prefix", "sentiment", "together", "num_captions", "weights"}
    same |= {"beam_width", "search_width", "group_size", "time_limit"}
    settings = CaptionSettings(
        **{name: told[name] for name in same},
        max_tokens=told["steps"],
        sentiment_temperature=labels.get("temperature", SENTIMENT_TEMPERATURE),
        forbid=tuple(words.get("Forbid", ())),
        require=tuple(words.get("Require", ())),
        proposal=proposal,
        seed=lines[0]["seed"],
    )
    used = told["models"]
    ids = ModelIds(used["fluency"], used["image"], used.get("sentiment", ""))
    again = list(caption(files, settings, models=ids, device=told["device"]))
    assert [record(one)["text"] for one in again] == [line["text"] for line in lines]
    assert [record(one)["settings"] for one in again] == [line["settings"] for line in lines]


def test_an_unknown_sentiment_names_the_labels(run, tmp_path) -> None:
    output = run(*save_pictures(tmp_path, "a.png"), "--sentiment", "glad")
    assert output.code == 1
    for label in ("glad", "negative", "neutral", "positive"):
        assert label in output.err


def test_several_captions_per_image(run, tmp_path) -> None:
    options = (*SMALL[2:], "--max-tokens", "5", "--num-captions", "3", "--json")
    output = run(*save_pictures(tmp_path, "a.png", "b.png"), options=options)
    images = [line["image"] for line in output.lines]
    assert images == sorted(images)
    assert all(1 <= images.count(i) <= 3 for i in set(images))


def test_a_time_limit_and_a_token_limit(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png")
    output = run(*files, "--json", "--time-limit", "0.000001", "--max-tokens", "9")
    (line,) = output.lines
    assert line["settings"]["steps"] == 9
    assert line["settings"]["time_limit"] == 0.000001
    prefix = line["text"].split()[:3]
    assert prefix == ["An", "image", "of"]
    assert not line["finished"]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_caption_has_at_most_the_tokens_asked_for(limit: int, run, tmp_path, models) -> None:
    options = (*SMALL[2:], "--max-tokens", str(limit), "--num-captions", "9", "--json")
    output = run(*save_pictures(tmp_path, "a.png", "b.png"), options=options)
    given = len(Tokenizer.from_pretrained(Path(models).parent / "lm").encode("An image of"))
    assert all(1 <= len(line["token_ids"]) - given <= limit for line in output.lines)


def test_settings_come_from_a_file_and_options_win(run, tmp_path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("max_tokens: 1\nprefix: A photo of\nforbid: [cat]\nweight: [image=3]\n")
    output = run(
        *save_pictures(tmp_path, "a.png"), "--json", options=("--config", str(config), *SMALL[2:])
    )
    (line,) = output.lines
    assert line["settings"]["steps"] == 1
    assert line["text"].startswith("A photo of")
    assert line["settings"]["weights"]["image"] == 3.0
    options = ("--config", str(config), *SMALL)
    (line,) = run(str(tmp_path / "a.png"), "--json", options=options).lines
    assert line["settings"]["steps"] == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ("a.png", "--max-tokens", "0"),
            "--max-tokens 0: expected a whole number above 0 and",
        ),
        (("a.png", "--beam-width", "-1"), "--beam-width"),
        (
            ("a.png", "--search-width", "-5"),
            "--search-width -5: expected a whole number above 0",
        ),
        (("a.png", "--num-captions", "0"), "--num-captions"),
        (("a.png", "--max-tokens", "-1"), "--max-tokens"),
        (("a.png", "--group-size", "0"), "--group-size"),
        (("a.png", "--time-limit", "-1"), "--time-limit -1: expected a number above 0."),
        (("a.png", "--device", "gpu"), "--device gpu: expected auto, cpu or cuda."),
        (("a.png", "--proposal", "direct"), "expected one of none, random, word-table, additive"),
        (("a.png", "--weight", "image"), "expected TERM=NUMBER, such as image=20"),
        (("a.png", "--weight", "image=many"), "expected TERM=NUMBER"),
        (("a.png", "--weight", "imgae=2"), r"no term 'imgae'; the terms are ['fluency', 'image']"),
        (("a.png", "--weight", "sentiment=2"), "no sentiment without --sentiment"),
        (("a.png", "--sentiment-temperature", "2"), "no sentiment without --sentiment"),
        (("a.png", "--sentiment", "positive", "--sentiment-temperature", "0"), "a number above 0"),
        (("a.png", "--weight", "image=-2"), "at least 0"),
        (("a.png", "--weight", "image=0"), "only fluency may weigh 0"),
        (("a.png", "--colour", "red"), "--colour"),
        (("a.png", "--config", "none.yaml"), "none.yaml"),
        (("a.png", "--seed", "x"), "--seed x: expected a whole number."),
        (("a.png", "--time-limit", "nan"), "--time-limit nan: expected a number above 0."),
        (("a.png", "--forbid", ""), "--forbid '': expected a word in UTF-8."),
        (("a.png", "--require", " "), "--require  : expected a word in UTF-8."),
        (("a.png", "--forbid", "Cat", "--require", "cat"), "both name cat"),
        ((), "IMAGE is required"),
        (("a.png", "--steps", "2"), "--steps: not expected here"),
    ],
)
def test_usage_errors_have_exit_code_2(args, words, capsys) -> None:
    assert words in refused(capsys, *args)


def test_models_by_name_come_from_the_environment(capsys, tmp_path, monkeypatch, models) -> None:
    files = save_pictures(tmp_path, "a.png")
    monkeypatch.setenv("FUSEPROMPT_MODELS", models)
    assert main(["caption", *files, "--json", "--quiet", *SMALL]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["models"]["fluency"].endswith("lm")
    monkeypatch.setenv("FUSEPROMPT_MODELS", "papr")
    assert main(["caption", *files]) == 1
    assert "'papr': expected offline, paper, or a YAML file" in capsys.readouterr().err


def test_without_offline_models_it_names_the_command(capsys, tmp_path) -> None:
    assert main(["caption", *save_pictures(tmp_path, "a.png"), "--quiet"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "fuseprompt prepare" in printed.err
    assert "Traceback" not in printed.err


def test_an_unknown_id_lists_the_offline_ids(capsys, tmp_path, models) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(Path(models).read_text().replace("/lm\n", "/none\n"))
    assert main(["caption", *save_pictures(tmp_path, "a.png"), "--models", str(file)]) == 1
    assert "offline:lm" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error(tmp_path, models) -> None:
    files = save_pictures(tmp_path, "a.png")
    args = ["caption", *files, "--models", models, *SMALL]
    code = f"import sys; from fuseprompt.cli.main import main; sys.exit(main({args!r}))"
    call = shlex.join([sys.executable, "-c", code])  # the path may have a space in it
    command = f"{call} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def test_ctrl_c_keeps_what_is_finished(tmp_path, models) -> None:
    files = save_pictures(tmp_path, *(f"{i:04}.png" for i in range(400)))
    args = ["caption", *files, "--models", models, *SMALL, "--group-size", "1", "--json"]
    # A job in the background of a shell, and all that it starts, would not hear the signal.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from fuseprompt.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        begun = process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    lines = [json.loads(line) for line in (begun + rest).splitlines()]
    assert 1 <= len(lines) < len(files)
    assert [line["image"] for line in lines] == files[: len(lines)]
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err


def test_ctrl_c_shows_the_best_texts_so_far_apart_from_the_results(
    run, tmp_path, monkeypatch, capsys, models
) -> None:
    files = save_pictures(tmp_path, "a.png", "b.png", "c.png", "d.png")
    seen: list[Progress] = []

    def stop(bar: Bar, step: Progress) -> None:
        seen.append(step)
        if step.ids[0].startswith("2:"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Bar, "on_step", stop)
    given = [str(tmp_path / "none.png"), *files]
    options = ("--models", models, *SMALL, "--group-size", "2", "--json")
    assert main(["caption", *given, *options]) == 130
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [line["image"] for line in lines] == given[:2]
    told = [line for line in printed.err.splitlines() if line.startswith("not finished")]
    assert told == [f"not finished, best after 1 of 2 steps: {file}" for file in files[1:3]]
    for text in seen[-1].texts:
        assert f"\n  {text}\n" in printed.err
    assert printed.err.endswith("interrupted\n")


def test_several_images_get_one_text_together(run, tmp_path) -> None:
    files = save_pictures(tmp_path, "a.png", "b.png")
    output = run(*files, str(tmp_path / "none.png"), "--together", "--json")
    assert output.code == 1
    failure, one = output.lines
    assert "no such file" in failure["error"]
    assert one["image"] == files
    assert list(one) == KEYS
    assert run(*files, "--together").out.startswith(f"{', '.join(files)}\n")


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (["--models", "offline"], (8, 16)),
        (["--models", "paper"], (5, 512)),
        (["--models", "mine.yaml", "--beam-width", "3"], (3, 16)),
        (["--models", "paper", "--search-width", "64"], (5, 64)),
    ],
)
def test_a_search_is_as_wide_as_its_models_need_unless_said_otherwise(
    given: list[str], want: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parse(Options, ["a.png", *given], command="caption", preset=preset).settings
    assert (settings.beam_width, settings.search_width) == want
    monkeypatch.setenv("FUSEPROMPT_MODELS", "paper")
    settings = parse(Options, ["a.png"], command="caption", preset=preset).settings
    assert (settings.beam_width, settings.search_width) == (5, 512)


def test_sidecars_are_added_to_or_left_alone_but_never_lost(run, tmp_path: Path) -> None:
    files = save_pictures(tmp_path / "tree", "a.png", "b.png")
    save_pictures(tmp_path / "tree" / "deep" / "deeper", "c.png")
    folder = str(tmp_path / "tree")
    done = run(folder, "--recursive", "--sidecar", "txt", "--json")
    assert done.code == 0
    sidecars = sorted((tmp_path / "tree").rglob("*.txt"))
    assert [file.name for file in sidecars] == ["a.txt", "b.txt", "c.txt"]
    texts = [file.read_text() for file in sidecars]
    assert texts == [f"{line['caption']}\n" for line in done.lines]

    refused = run(str(files[0]), "--sidecar", "txt")
    assert refused.code == 2
    assert "1 of 1 images have one" in refused.err
    assert "--skip-existing" in refused.err
    assert [file.read_text() for file in sidecars] == texts

    sidecars[2].unlink()
    again = run(folder, "--recursive", "--sidecar", ".txt", "--skip-existing", "--json")
    assert len(again.lines) == 1
    assert "2 of 3 images have a sidecar" in again.err
    assert [file.read_text() for file in sidecars] == texts

    run(str(files[0]), "--sidecar", "txt", "--append")
    assert sidecars[0].read_text().startswith(texts[0])
    assert len(sidecars[0].read_text().splitlines()) == 2
    assert run(str(files[0]), "--append").code == 2


def test_a_table_has_a_row_for_each_image_and_keeps_errors(run, tmp_path: Path) -> None:
    (good,) = save_pictures(tmp_path, "good.png")
    (tmp_path / "bad.png").write_bytes(b"none")
    file = tmp_path / "out.csv"
    done = run(str(tmp_path / "bad.png"), str(good), "--out", str(file), "--format", "csv")
    assert done.code == 1
    with file.open(newline="") as table:
        bad, one = csv.DictReader(table)
    assert bad["image"].endswith("bad.png")
    assert "picture" in bad["error"] or "image" in bad["error"]
    assert one["image"] == str(good)
    assert one["error"] == ""
    assert set(json.loads(one["terms"])) == {"fluency", "image"}
    run(str(tmp_path / "bad.png"), "--out", str(file), "--format", "csv")
    assert len(file.read_text().splitlines()) == 2
