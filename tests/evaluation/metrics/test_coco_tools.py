"""The original programs: found or said to be missing, run safely, right where checked by hand."""

import json
import math
import os
from pathlib import Path

import pytest

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics import coco_tools as tools
from fuseprompt.evaluation.metrics.coco_tools import Words, run_java, spice, tokenize
from tests.evaluation.metrics.tools import (
    LIBRARY,
    fake_java,
    needs_library,
    needs_tools,
    use_light_library,
)

# --- Java -----------------------------------------------------------------------------------------


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = fake_java(tmp_path / "other", "", monkeypatch)
    home = fake_java(tmp_path / "home", "", monkeypatch)
    monkeypatch.setenv("PATH", str(other.parent), prepend=":")
    assert tools.find_java() == home
    monkeypatch.delenv("JAVA_HOME")
    assert tools.find_java() == other


def test_without_java_the_message_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MetricError, match="apt install default-jre-headless"):
        tools.find_java()


def test_locale_and_encoding_are_fixed_and_the_folder_is_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    fake_java(tmp_path, 'cat in.txt; echo "$LC_ALL"; echo "$@"', monkeypatch)
    text, locale, arguments = run_java(
        ["-jar", Path("a b.jar")], {"in.txt": "é\n"}, heap=300, timeout=10.0
    ).splitlines()
    assert (text, locale) == ("é", "C.UTF-8")
    assert arguments.startswith("-Xmx300m -Duser.language=en -Duser.country=US ")
    assert " -Dfile.encoding=UTF-8 " in arguments
    assert arguments.endswith("-jar a b.jar")


def test_a_file_that_a_program_writes_can_be_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, "echo printed; echo written > out.txt", monkeypatch)
    assert run_java([], {}, heap=300, timeout=10.0, output="out.txt") == "written\n"
    with pytest.raises(MetricError, match=r"wrote no other\.txt"):
        run_java([], {}, heap=300, timeout=10.0, output="other.txt")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            'printf \'Picked up JAVA_TOOL_OPTIONS: -Dx\\nException in thread "main" '
            "java.lang.OutOfMemoryError: heap\\n\\tat a.B.c(D.java:1)\\n' >&2; exit 1",
            r"exit code 1\): .*OutOfMemoryError: heap$",
        ),
        ("echo 'could not find libjava.so' >&2; exit 2", "2.: could not find libjava.so"),
        ("exit 3", "3.: no error output"),
        ("kill -9 $$", "killed by signal 9; out of memory"),
        ("exec sleep 20", "stopped after 0 s"),
    ],
)
def test_a_fault_is_told_in_the_programs_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    fake_java(tmp_path, script, monkeypatch)
    with pytest.raises(MetricError, match=message):
        run_java([], {}, heap=300, timeout=0.3 if "sleep" in script else 10.0)


def test_a_file_that_is_no_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "", monkeypatch).write_text("no program")
    with pytest.raises(MetricError, match="cannot be started"):
        run_java([], {}, heap=300, timeout=10.0)


def test_the_library_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MetricError, match=r'pip install "fuseprompt\[metrics\]"'):
        tools.library_folder()


# --- the tokenizer --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("A dog.<|endoftext|>", "A dog. "),
        ("<|startoftext|>a dog</s>", " a dog "),
        ("[CLS] a [MASK] dog [SEP]", "  a   dog  "),
        ("a <b> | dog [sic]", "a <b> | dog [sic]"),
    ],
)
def test_special_tokens_are_no_words(text: str, left: str) -> None:
    assert tools.strip_special(text) == left


@needs_tools
def test_every_caption_keeps_its_line() -> None:
    odd = ["\n", "\r", "\v", "\f", "\r\n", "\x1c", "\x85", "\u2028", "\u2029", "\x00", "\ud800"]
    texts = [f"A red{c}kite!" for c in odd]
    rows = tokenize([*texts, "", "...", "The last one."])
    assert rows[: len(odd) - 1] == ["a red kite"] * (len(odd) - 1)
    assert rows[-3:] == ["", "", "the last one"]


@needs_tools
def test_no_character_of_the_basic_plane_moves_a_caption() -> None:
    rows = tokenize([f"{code} kites{chr(code)}fly" for code in range(0x10000)])
    assert [row.split(maxsplit=1)[0] for row in rows] == [str(code) for code in range(0x10000)]


@needs_tools
def test_words_are_those_of_the_original() -> None:
    texts = [
        "A man's dog (brown) -- isn't it?",
        "Café, naïve 日本",
        "Two dogs. A cat.",
        "dog " * 2000,
    ]
    assert tokenize(texts) == [
        "a man 's dog -lrb- brown -rrb- is n't it",
        "café naïve 日本",
        "two dogs a cat",
        " ".join(["dog"] * 2000),
    ]


@needs_tools
def test_nothing_is_written_beside_the_library() -> None:
    folder = tools.library_folder() / "tokenizer"
    before = {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]}
    tokenize(["a dog"])
    assert {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]} == before


@needs_library
def test_a_lost_line_is_an_error_and_no_shift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, "echo only one", monkeypatch)
    with pytest.raises(MetricError, match="gave 1 lines for 2 captions"):
        tokenize(["a", "b"])


# --- BLEU, ROUGE-L, CIDEr-D -----------------------------------------------------------------------

WORDS = Words(
    {"1": "a red kite", "2": "a dog"},
    {"1": ("a red kite over a pond",), "2": ("a cat", "the dog on a mat")},
)


@needs_library
def test_bleu_by_hand() -> None:
    # All five words match; the closest references have 6 and 2 words against 5 of the captions.
    brevity = math.exp(1 - 8 / 5)
    one, two, three, _ = tools.bleu(WORDS)
    assert one == pytest.approx(brevity, rel=1e-6)
    # Pairs: "a red" and "red kite" match, "a dog" does not.
    assert two == pytest.approx(brevity * math.sqrt(2 / 3), rel=1e-6)
    # "a red kite" is the only triple.
    assert three == pytest.approx(brevity * (2 / 3) ** (1 / 3), rel=1e-6)


@needs_library
def test_rouge_by_hand() -> None:
    def f(precision: float, recall: float) -> float:
        return 2.44 * precision * recall / (recall + 1.44 * precision)

    # The second takes the best precision and the best recall of its references, both from "a cat".
    assert tools.rouge_l(WORDS) == pytest.approx((f(1, 3 / 6) + f(1 / 2, 1 / 2)) / 2)


@needs_library
def test_cider_is_given_image_by_image_and_needs_other_images() -> None:
    scores = tools.cider_d(WORDS)
    assert list(scores) == ["1", "2"]
    assert scores["1"] > scores["2"] >= 0
    alone = Words({"1": WORDS.captions["1"]}, {"1": WORDS.references["1"]})
    assert tools.cider_d(alone) == {"1": 0.0}


@needs_library
def test_a_perfect_caption_scores_most_and_an_empty_one_nothing() -> None:
    perfect = Words({"1": "a b c d", "2": "e f g h"}, {"1": ("a b c d",), "2": ("e f g h",)})
    assert tools.bleu(perfect) == pytest.approx([1.0] * 4)
    assert tools.rouge_l(perfect) == pytest.approx(1.0)
    assert tools.cider_d(perfect) == pytest.approx({"1": 10.0, "2": 10.0})
    empty = Words({"1": "", "2": "a dog"}, {"1": ("a cat",), "2": ("a dog",)})
    assert tools.rouge_l(empty) == pytest.approx(0.5)
    assert tools.cider_d(empty)["1"] == 0.0
    assert tools.bleu(Words({"1": ""}, {"1": ("a cat",)})) == pytest.approx([0.0] * 4)


# --- METEOR ---------------------------------------------------------------------------------------

THREE = Words(
    {"1": "a dog runs on the grass", "2": "", "3": "a red kite"},
    {"1": ("the dog is running", "a dog runs"), "2": ("a cat",), "3": ("a kite", "red kites fly")},
)


@needs_tools
def test_a_blank_in_the_path_and_a_german_machine_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_light_library(tmp_path / "here", monkeypatch)
    there = tools.meteor(THREE)
    assert there == pytest.approx(0.32314032182352137, abs=0.02)  # Without the real paraphrases.
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=de -Duser.language.format=de")
    use_light_library(tmp_path / "with a blank", monkeypatch)
    assert tools.meteor(THREE) == there


@needs_tools
def test_captions_without_any_word_score_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_light_library(tmp_path / "here", monkeypatch)
    assert tools.meteor(Words({"1": "", "2": ""}, {"1": ("a cat",), "2": ("",)})) == 0.0


@needs_library
@pytest.mark.parametrize(
    "answer",
    [
        "Segment 1 score: 0.3\\nFinal score: 0.3",
        "Segment 1 score: 0,3\\nSegment 2 score: 0,3\\nSegment 3 score: 0,3\\nFinal score: 0,3",
        "",
    ],
)
def test_an_answer_that_is_no_score_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    fake_java(tmp_path, f"printf '{answer}\\n'", monkeypatch)
    with pytest.raises(MetricError, match=r"of 3 captions .* expected 'Final score:'"):
        tools.meteor(THREE)


@needs_library
def test_images_with_fewer_references_repeat_their_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, f"cp references.txt '{tmp_path}/seen'; exit 1", monkeypatch)
    with pytest.raises(MetricError):
        tools.meteor(THREE)
    assert (tmp_path / "seen").read_text().splitlines() == [
        *("the dog is running", "a dog runs"),
        *("a cat", "a cat"),
        *("a kite", "red kites fly"),
    ]


# --- SPICE ----------------------------------------------------------------------------------------

TWO = Words({"7": "a red kite", "9": ""}, {"7": ("a kite",), "9": ("a dog", "a cat")})


def jars(folder: Path) -> Path:
    """Return a folder with files of the names of CoreNLP's jars."""
    folder.mkdir(parents=True)
    for name in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
        (folder / name).touch()
    return folder


def test_corenlp_is_found_in_its_folder_or_in_the_one_around_it(tmp_path: Path) -> None:
    inner = jars(tmp_path / "stanford-corenlp-full-2015-12-09")
    assert tools.find_corenlp(inner) == inner
    assert tools.find_corenlp(tmp_path) == inner


def test_what_corenlp_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match="--spice-folder DIR"):
        tools.find_corenlp(None)
    (tmp_path / "stanford-corenlp-3.6.0.jar").touch()
    with pytest.raises(MetricError, match=r"lacks stanford-corenlp-3\.6\.0-models\.jar"):
        tools.find_corenlp(tmp_path)


@needs_library
def test_spice_is_the_mean_over_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"image_id": i, "scores": {"All": {"f": f}}} for i, f in enumerate([0.5, math.nan])]
    script = f"cp asked.json {tmp_path}; echo \"$@\" > {tmp_path}/call; cat > scores.json <<'END'"
    fake_java(tmp_path, f"{script}\n{json.dumps(rows)}\nEND", monkeypatch)
    corenlp = jars(tmp_path / "core nlp")
    assert spice(TWO, corenlp) == 0.25
    assert f"{corenlp}/stanford-corenlp-3.6.0-models.jar" in (tmp_path / "call").read_text()
    assert json.loads((tmp_path / "asked.json").read_text()) == [
        {"image_id": 0, "test": "a red kite", "refs": ["a kite"]},
        {"image_id": 1, "test": "", "refs": ["a dog", "a cat"]},
    ]


@needs_library
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'java.lang.NoClassDefFoundError: x/Y' >&2; exit 1", "NoClassDefFoundError: x/Y"),
        ("echo '[]' > scores.json", "scored 0 images, expected 2"),
        ("echo '[{]' > scores.json", "no scores that can be read"),
        ("true", r"wrote no scores\.json"),
    ],
)
def test_faults_of_spice_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    fake_java(tmp_path, script, monkeypatch)
    with pytest.raises(MetricError, match=message):
        spice(TWO, jars(tmp_path / "nlp"))


@needs_tools
@pytest.mark.slow
@pytest.mark.skipif("FUSEPROMPT_CORENLP" not in os.environ, reason="needs CoreNLP 3.6.0")
def test_the_real_program() -> None:
    corenlp = tools.find_corenlp(Path(os.environ["FUSEPROMPT_CORENLP"]))
    assert spice(Words({"1": "a red kite"}, {"1": ("a red kite",)}), corenlp) == 1.0


@needs_tools
def test_the_real_program_without_its_parser_says_what_is_missing(tmp_path: Path) -> None:
    assert LIBRARY is not None
    with pytest.raises(MetricError, match=r"edu\.stanford\.nlp\.semgraph"):
        spice(TWO, jars(tmp_path / "empty jars"))
