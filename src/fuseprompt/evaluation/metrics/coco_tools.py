"""The metrics of coco-caption: pycocoevalcap's code, and its Java programs run by our own.

pycocoevalcap runs them in its own folder, hangs on an odd caption, and gives later captions to the
wrong image after a line break that is no line feed.
"""

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, final

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.datasets.base import clean_caption

#: Passed to every program: on a German machine METEOR would print decimal commas. The `.format`
#: properties win over the plain ones where both are set.
_FLAGS: Final = (
    *("-Duser.language=en", "-Duser.country=US"),
    *("-Duser.language.format=en", "-Duser.country.format=US"),
    *("-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"),
)

#: The two files of CoreNLP 3.6.0 that SPICE needs, and the folder in its archive.
_CORENLP: Final = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
_UNPACKED: Final = "stanford-corenlp-full-2015-12-09"

#: Tokens that stand for no text; the tokenizer would make five words of "<|endoftext|>".
_SPECIAL: Final = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|</?s>|<pad>|<unk>|<eos>|<bos>|<mask>|</?(?:start|end)_of_turn>"
    r"|\[(?:CLS|SEP|PAD|UNK|MASK)\]"
)


@final
@dataclass(frozen=True)
class Words:
    """Tokenized captions, "" where there is none, and references of the same images in order."""

    captions: Mapping[str, str]
    references: Mapping[str, tuple[str, ...]]


def strip_special(text: str) -> str:
    """Return a text without special tokens, such as "<|endoftext|>", "</s>" or "[SEP]"."""
    return _SPECIAL.sub(" ", text)


def tokenize(texts: Sequence[str]) -> list[str]:
    """Return a line of lower-case words for each text, by Stanford's PTB tokenizer 3.4.1."""
    # Brackets stay as "-lrb-", a fault of every published number.
    folder = library_folder() / "tokenizer"
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS, STANFORD_CORENLP_3_4_1_JAR

    program = ("-cp", folder / STANFORD_CORENLP_3_4_1_JAR, "edu.stanford.nlp.process.PTBTokenizer")
    printed = run_java(
        (*program, "-preserveLines", "-lowerCase", "captions.txt"),
        {"captions.txt": _lines(map(clean_caption, texts))},
        heap=1024,
        timeout=120 + 0.05 * len(texts),
    )
    rows = printed.split("\n")[:-1]
    if len(rows) != len(texts):
        raise MetricError(
            f"The PTB tokenizer gave {len(rows)} lines for {len(texts)} captions, so captions and "
            "images no longer match. Look for odd characters in the captions."
        )
    removed = frozenset(PUNCTUATIONS)
    return [" ".join(word for word in row.split() if word not in removed) for row in rows]


def bleu(words: Words) -> list[float]:
    """Return BLEU-1 to BLEU-4 of the whole set, from 0 to 1."""
    from pycocoevalcap.bleu.bleu import Bleu

    scores, _ = Bleu(4).compute_score(*_as_library(words), verbose=0)
    return [float(score) for score in scores]


def rouge_l(words: Words) -> float:
    """Return the mean ROUGE-L over images, from 0 to 1."""
    from pycocoevalcap.rouge.rouge import Rouge

    mean, _ = Rouge().compute_score(*_as_library(words))
    return float(mean)


def cider_d(words: Words) -> dict[str, float]:
    """Return the CIDEr-D of each image, from 0 to 10; words are weighed by all images given."""
    from pycocoevalcap.cider.cider import Cider

    _, scores = Cider().compute_score(*_as_library(words))
    return {i: float(score) for i, score in zip(words.captions, scores, strict=True)}


def meteor(words: Words) -> float:
    """Return METEOR 1.5 of the whole set, from 0 to 1; it is no mean over images."""
    most = max(len(lines) for lines in words.references.values())
    # Every image must have as many references; repeating one changes no score.
    padded = [(*lines, *[lines[-1]] * (most - len(lines))) for lines in words.references.values()]
    home = library_folder() / "meteor"
    # The program finds its paraphrases by itself, but not in a folder with a blank in its name.
    options = ("-l", "en", "-norm", "-r", str(most), "-a", home / "data" / "paraphrase-en.gz")
    printed = run_java(
        ("-jar", home / "meteor-1.5.jar", "captions.txt", "references.txt", *options),
        {"captions.txt": _lines(words.captions.values()), "references.txt": _lines(chain(*padded))},
        heap=2048,
        timeout=300 + 0.1 * len(words.captions) * most,
    )
    segments = len(re.findall(r"^Segment \d+ score:", printed, flags=re.MULTILINE))
    found = re.search(r"^Final score:\s+([\d.Ee-]+)\s*$", printed, flags=re.MULTILINE)
    if found is None or segments != len(words.captions) or not math.isfinite(float(found[1])):
        raise MetricError(
            f"METEOR scored {segments} of {len(words.captions)} captions and ended with "
            f"{printed.strip()[-80:]!r}; expected 'Final score:' and a number."
        )
    return float(found[1])


def spice(words: Words, corenlp: Path) -> float:
    """Return the mean SPICE over images, from 0 to 1; `corenlp` is what `find_corenlp` returned."""
    asked = [
        {"image_id": number, "test": words.captions[i], "refs": list(words.references[i])}
        for number, i in enumerate(words.captions)
    ]
    jars = [library_folder() / "spice" / "spice-1.0.jar", *(corenlp / jar for jar in _CORENLP)]
    program = ("-cp", os.pathsep.join(map(str, jars)), "edu.anu.spice.SpiceScorer")
    answer = run_java(
        (*program, "asked.json", "-out", "scores.json", "-silent"),
        {"asked.json": json.dumps(asked)},
        heap=8192,
        timeout=7200.0,
        output="scores.json",
    )
    try:
        scores = {row["image_id"]: float(row["scores"]["All"]["f"]) for row in json.loads(answer)}
    except (ValueError, KeyError, TypeError) as error:
        raise MetricError(f"SPICE wrote no scores that can be read ({error}).") from None
    if set(scores) != set(range(len(asked))):
        raise MetricError(f"SPICE scored {len(scores)} images, expected {len(asked)}.")
    # Without one tuple in the references there is nothing to find, and the program says NaN.
    return sum(f if math.isfinite(f) else 0.0 for f in scores.values()) / len(scores)


def library_folder() -> Path:
    """Return the folder of pycocoevalcap, or raise a `MetricError` that names the package."""
    found = importlib.util.find_spec("pycocoevalcap")
    if found is None or not found.submodule_search_locations:
        raise MetricError(
            "The package pycocoevalcap is not installed. "
            'Install it (104 MB): pip install "fuseprompt[metrics]".'
        )
    return Path(found.submodule_search_locations[0])


def find_java() -> Path:
    """Return the Java of JAVA_HOME, else the first on PATH, or raise a `MetricError`."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    path = path or shutil.which("java")
    if path is None:
        raise MetricError(
            "Java is not installed (no `java` in JAVA_HOME or on PATH). "
            "Install it: apt install default-jre-headless, or conda install openjdk."
        )
    return Path(path)


def find_corenlp(folder: Path | None) -> Path:
    """Return the folder of CoreNLP 3.6.0: `folder`, or the archive's in it, or raise an error."""
    if folder is None:
        raise MetricError(
            "SPICE needs Stanford CoreNLP 3.6.0, which no package brings. Download "
            f"{_UNPACKED}.zip (385 MB) from Stanford or from Maven Central, unpack it and give its "
            "folder: --spice-folder DIR."
        )
    for place in (folder, folder / _UNPACKED):
        if all((place / jar).is_file() for jar in _CORENLP):
            return place
    missing = [jar for jar in _CORENLP if not (folder / jar).is_file()]
    raise MetricError(
        f"{folder} lacks {' and '.join(missing)}. Give the folder of Stanford CoreNLP 3.6.0; other "
        "versions give other scores."
    )


def run_java(
    arguments: Sequence[str | Path],
    files: Mapping[str, str],
    *,
    heap: int,
    timeout: float,
    output: str | None = None,
) -> str:
    """Run Java in a new folder with `files`, its heap in MB; return `output` or what it printed."""
    command = [str(find_java()), f"-Xmx{heap}m", *_FLAGS, *map(str, arguments)]
    with tempfile.TemporaryDirectory(prefix="fuseprompt-") as folder:
        for name, text in files.items():
            Path(folder, name).write_bytes(text.encode())
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                # In the locale C Java opens no path with an "é" in it.
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MetricError(
                f"Java was stopped after {timeout:.0f} s without an answer. Score fewer captions, "
                "or look for a caption of thousands of words."
            ) from None
        except OSError as error:
            raise MetricError(f"{command[0]} cannot be started ({error.strerror}).") from None
        if (code := done.returncode) != 0:
            how = f"exit code {code}" if code > 0 else f"killed by signal {-code}; out of memory?"
            reason = _last_words(done.stderr.decode(errors="replace"))
            raise MetricError(f"Java failed ({how}): {reason}")
        try:
            content = done.stdout if output is None else Path(folder, output).read_bytes()
        except OSError as error:
            raise MetricError(f"Java wrote no {output} ({error.strerror}).") from None
    return content.decode(errors="replace")


def _last_words(stderr: str) -> str:
    """Return the line of the exception in an error output, or its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # Java repeats JAVA_TOOL_OPTIONS there, and the frames of a stack say nothing to a user.
    lines = [line for line in lines if not line.startswith(("Picked up ", "at ", "... "))]
    errors = [line for line in lines if re.search(r"(Error|Exception)\b", line)]
    chosen = errors[-1] if errors else lines[-1] if lines else "no error output"
    return chosen if len(chosen) <= 300 else f"{chosen[:297]}..."


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def _as_library(words: Words) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return references and captions as pycocoevalcap takes them."""
    references = {i: list(lines) for i, lines in words.references.items()}
    return references, {i: [line] for i, line in words.captions.items()}
