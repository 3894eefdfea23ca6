"""The project around the code: documents, versions, pins, layers, photos, banned calls, start-up.

Each check is a function that returns what it found wrong, and has a test that it finds a planted
fault.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import chain, zip_longest
from pathlib import Path

import pytest
import torch
import yaml
from jaxtyping import TypeCheckError
from PIL import Image

from fuseprompt.models.batching import spread

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(RESULTS.glob("*.md")),
]
#: Extras that fit together in one environment; ray and bertopic are large, and stay out of it.
PINNED_EXTRAS = ("app", "track", "metrics", "dev", "docs")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Written in pieces, so that this file does not contain what it forbids.
FORBIDDEN_TEXT = [
    *("/" + name + "/" for name in ("work", "farm", "root")),
    *("pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "deb.debian" + ".org"),
    "download.pytorch" + ".org",
]


def tracked_files() -> list[Path]:
    """Return the files that git tracks and that are still there."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def fenced(text: str, language: str) -> list[str]:
    """Return the contents of the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run_python(code: str) -> str:
    """Run code in a fresh interpreter at the repository's root and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- what may not stand anywhere ------------------------------------------------------------------


def forbidden_text(text: str) -> list[str]:
    """Return the paths of machines and the hosts of registries that a text names."""
    return [word for word in FORBIDDEN_TEXT if word in text]


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    found = {
        str(path.relative_to(ROOT)): words
        for path in tracked_files()
        if (words := forbidden_text(path.read_bytes().decode("utf-8", errors="ignore")))
    }
    assert found == {}


def test_forbidden_text_finds_each_word() -> None:
    assert all(forbidden_text(f"see {word}x") == [word] for word in FORBIDDEN_TEXT)
    assert forbidden_text("see docs/decisions.md and a work/life balance") == []


def banned_code(source: str, *, may_load: bool = False) -> list[str]:
    """Return what a source file does that this package never does, as `line: what`.

    `may_load` allows `torch.load(..., weights_only=True)`.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names) if any(n.name.split(".")[0] == "pickle" for n in names):
                found.append(f"{node.lineno}: pickle")
            case ast.ImportFrom(module="pickle"):
                found.append(f"{node.lineno}: pickle")
            case ast.ImportFrom(module="__future__", names=names):
                found.extend(f"{node.lineno}: {n.name}" for n in names if n.name == "annotations")
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                found.append(f"{node.lineno}: {name}")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
                safe = any(
                    k.arg == "weights_only"
                    and isinstance(k.value, ast.Constant)
                    and k.value.value is True
                    for k in node.keywords
                )
                if not (safe and may_load):
                    found.append(f"{node.lineno}: torch.load")
            case ast.keyword(arg="trust_remote_code"):
                found.append(f"{node.value.lineno}: trust_remote_code")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_source_file_does_what_is_banned(path: Path) -> None:
    may_load = "offline" in path.parts
    assert banned_code(path.read_text(), may_load=may_load) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, pickle as p",
        "from pickle import loads",
        "from __future__ import annotations",
        "eval('1')",
        "exec(code)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=True)",
        "load(path, trust_remote_code=True)",
    ],
)
def test_banned_code_finds_each_fault(source: str) -> None:
    assert len(banned_code(source)) == 1


def test_banned_code_accepts_what_is_allowed() -> None:
    assert banned_code("torch.load(path, weights_only=True)", may_load=True) == []
    assert len(banned_code("torch.load(path)", may_load=True)) == 1
    assert banned_code("model.eval()\nre.compile('x')\nsafetensors.torch.load_file(path)") == []


# --- one word per idea ----------------------------------------------------------------------------

#: Words that the package no longer uses, each with what stands for it today.
OLD_WORDS = {
    r"\btones?\b": "sentiment",
    r"\btransfers?\b": "proposal",
    r"\bslots?\b(?!=True)": "position",
    r"\banchored\b": "additive",
    r"\bcontext-free\b": "word table",
    r"\bnew words?\b": "word-initial token",
    r"\bopen texts?\b": "active hypothesis",
    r"(?<!\.)(?<!\")\bstems?\b": "prefix",
    r"\bframed\b|\.frame\(": "with special tokens",
    r"\bdear\b|\btold\b": "expensive, said",
    r"contracts, section": "a page of this repository",
}


def old_words(source: str) -> list[str]:
    """Return what a file says in words of the past, as `line: word`."""
    lines = enumerate(source.splitlines(), start=1)
    return [
        f"{n}: {found.group()} (today: {today})"
        for n, line in lines
        for word, today in OLD_WORDS.items()
        if (found := re.search(word, line, flags=re.IGNORECASE))
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_one_word_stands_for_an_idea(path: Path) -> None:
    assert old_words(path.read_text()) == []


def test_old_words_are_found() -> None:
    said = "A tone; the transfer of a slot.\nstem = 1\nids = tokenizer.frame(row)\n"
    assert [entry.split(":")[0] for entry in old_words(said)] == ["1", "1", "1", "2", "3"]
    assert old_words("path.stem, transfer_gradient, dataclass(slots=True), a sentiment") == []


# --- layout ---------------------------------------------------------------------------------------


def test_files_are_named_by_what_they_hold_and_stay_short() -> None:
    names = {path.name for path in SOURCES}
    assert names.isdisjoint({"utils.py", "helpers.py", "core.py", "misc.py", "common.py"})
    long = {
        str(path.relative_to(ROOT)): count
        for path in SOURCES
        if (count := len(path.read_text().splitlines())) > 400
    }
    assert long == {}


def test_the_layers_hold() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys, time; start = time.process_time(); import fuseprompt; "
        "heavy = {'torch', 'transformers', 'numpy'}; "
        "print(time.process_time() - start, *sorted(heavy & set(sys.modules)))"
    )
    seconds, *loaded = min(
        (run_python(code).split() for _ in range(3)), key=lambda row: float(row[0])
    )
    assert loaded == []
    assert float(seconds) < 0.2


def test_every_public_name_can_be_imported() -> None:
    code = (
        "import fuseprompt; assert 0 < len(fuseprompt.__all__) <= 24, fuseprompt.__all__; "
        "[getattr(fuseprompt, name) for name in fuseprompt.__all__]"
    )
    run_python(code)


# --- versions and pins ----------------------------------------------------------------------------


def pins(text: str) -> dict[str, str]:
    """Return the `name==version` lines of a requirements file, names normalised."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    rows = (line.split("==", 1) for line in lines if line)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in rows}


def requirement_names(requirements: Iterable[str]) -> set[str]:
    """Return the normalised names of requirement strings."""
    names = (re.match(r"[A-Za-z0-9._-]+", text) for text in requirements)
    return {re.sub(r"[-_.]+", "-", match.group()).lower() for match in names if match}


def test_one_version_stands_everywhere() -> None:
    version = PYPROJECT["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(
        rf"^## \[(Unreleased|{re.escape(version)})\]", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert run_python("import fuseprompt; print(fuseprompt.__version__)").strip() == version


def test_every_requirement_is_pinned() -> None:
    project = PYPROJECT["project"]
    extras = (project["optional-dependencies"][name] for name in PINNED_EXTRAS)
    wanted = requirement_names([*project["dependencies"], *chain(*extras)])
    pinned = pins((ROOT / "constraints.txt").read_text())
    assert wanted - set(pinned) == set()
    assert "+" not in pinned["torch"]


def test_ci_runs_the_oldest_transformers_that_we_claim() -> None:
    oldest = pins((ROOT / ".ci" / "oldest.txt").read_text())["transformers"]
    claimed = [
        text for text in PYPROJECT["project"]["dependencies"] if text.startswith("transformers")
    ]
    assert oldest.startswith(claimed[0].removeprefix("transformers>="))


def test_pins_and_names_are_read_right() -> None:
    assert pins("# a\nHuggingface_Hub==2.4.0  # b\n\nrich==15.0.0\n") == {
        "huggingface-hub": "2.4.0",
        "rich": "15.0.0",
    }
    assert requirement_names(["torch>=2.11", "ray[default]>=2"]) == {
        "torch",
        "ray",
    }


def test_the_release_publishes_only_the_version_that_its_tag_names() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    jobs = workflow["jobs"]
    assert jobs["publish"]["needs"] == ["test", "build"]
    tokens = [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})]
    assert tokens == ["publish"]
    (check,) = [step["run"] for step in jobs["build"]["steps"] if "tag" in step.get("name", "")]
    for tag, code in ((f"v{PYPROJECT['project']['version']}", 0), ("v0.0.1", 1)):
        env = {**os.environ, "GITHUB_REF_NAME": tag}
        assert (
            subprocess.run(["sh", "-c", check], cwd=ROOT, env=env, check=False).returncode == code
        )
    tried = jobs["test"]["strategy"]["matrix"]["python"]
    classifiers = PYPROJECT["project"]["classifiers"]
    assert [f"Programming Language :: Python :: {v}" for v in tried] == [
        c for c in classifiers if ":: Python ::" in c
    ]


def test_the_check_of_other_pythons_finds_what_they_cannot_read(tmp_path: Path) -> None:
    check = [sys.executable, ".ci/check_python.py", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": "src"}
    (tmp_path / "a.py").write_text("x = 1\n")
    done = subprocess.run(check, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "1 files compile" in done.stdout
    (tmp_path / "b.py").write_text("x = = 1\n")
    assert (
        subprocess.run(check, cwd=ROOT, env=env, capture_output=True, check=False).returncode == 1
    )


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("checks", [pytest.param(True, marks=pytest.mark.shapes), False])
def test_shapes_are_checked_where_that_is_asked_for(checks: bool) -> None:
    with pytest.raises(TypeCheckError, match="spread") if checks else nullcontext():
        spread(torch.zeros(1).long(), torch.ones(3).long())


# --- README and the other documents ---------------------------------------------------------------


def missing_things(text: str) -> list[str]:
    """Return the make targets, commands and files that a document names and that do not exist."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    commands = {path.stem for path in (ROOT / "src/fuseprompt/cli").glob("*.py")} - {
        "main",
        "__init__",
    }
    code = "\n".join([*fenced(text, "sh"), *re.findall(r"`([^`\n]+)`", text)])
    found = [f"make {t}" for t in re.findall(r"\bmake ([a-z][a-z-]*)", code) if t not in targets]
    found += [
        f"fuseprompt {c}"
        for c in re.findall(r"^(?:\.venv/bin/)?fuseprompt ([a-z]+)", code, flags=re.MULTILINE)
        if c not in commands
    ]
    paths = re.findall(
        r"`((?:src|docs|tests|examples|training|configs|benchmarks|\.ci)/[\w./-]+)`", text
    )
    paths += [p for p in re.findall(r"\]\(([^)#:\s]+)\)", text) if not p.startswith("http")]
    folders = (ROOT, ROOT / "docs", RESULTS, RESULTS.parent)
    return found + [
        path for path in paths if not any((folder / path).exists() for folder in folders)
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_only_what_exists(path: Path) -> None:
    assert missing_things(path.read_text()) == []


def test_missing_things_finds_each_kind() -> None:
    text = "```sh\nmake nothing\n```\n`fuseprompt nothing` `src/nothing.py` [x](docs/nothing.md)"
    assert missing_things(text) == [
        "make nothing",
        "fuseprompt nothing",
        "src/nothing.py",
        "docs/nothing.md",
    ]
    assert missing_things("```sh\nmake caption\n```\n`src/fuseprompt/errors.py`") == []


def test_the_readme_example_is_python_and_imports_what_exists() -> None:
    blocks = fenced((ROOT / "README.md").read_text(), "python")
    assert blocks
    for block in blocks:
        imports = [
            node for node in ast.parse(block).body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        run_python(ast.unparse(ast.Module(body=list(imports), type_ignores=[])))


def differing_output(printed: str, shown: str) -> list[str]:
    """Return lines whose words differ, or a number by more than a processor's rounding may."""
    number = re.compile(r"-?\d+\.\d+")
    lines = list(zip_longest(printed.splitlines(), shown.splitlines(), fillvalue=""))
    return [
        f"{ours} | {theirs}"
        for ours, theirs in lines
        if number.sub("#", ours) != number.sub("#", theirs)
        or any(
            abs(float(a) - float(b)) > 0.0101
            for a, b in zip(number.findall(ours), number.findall(theirs), strict=True)
        )
    ]


@pytest.mark.offline
@pytest.mark.timeout(900)  # searches of real models, on a busy machine
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_readme_examples_print_what_it_shows(number: int) -> None:
    text = (ROOT / "README.md").read_text()
    pairs = re.findall(r"^```python\n(.*?)^```\n+```text\n(.*?)^```", text, flags=re.M | re.S)
    assert len(pairs) == 2
    code, shown = pairs[number]
    assert differing_output(run_python(code), shown) == []


def test_differing_output_finds_each_fault() -> None:
    assert differing_output("a cat 1.02\n", "a cat 1.03\n") == []
    assert len(differing_output("a cat 1.02\n", "a cat 1.05\n")) == 1
    assert len(differing_output("a cat 1.02\n", "a dog 1.02\n")) == 1
    assert len(differing_output("a cat\n", "a cat\nand more\n")) == 1


# --- the two commands -----------------------------------------------------------------------------


def test_make_takes_paths_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "a folder with spaces"
    shutil.copytree(ROOT / ".ci", folder / ".ci", ignore=shutil.ignore_patterns("out"))
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    done = subprocess.run(
        ["make", "--dry-run", "caption", "IMAGE=my photos/it's $$5.jpg"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '-- "$IMAGE"' in done.stdout


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("exit 1", "needs Python 3.11 or newer"),
        (
            'case "$2" in *ensurepip*) exit 1;; *format*|*print*) echo 3.12;; esac',
            "python3.12-venv",
        ),
    ],
    ids=["too old", "no venv"],
)
def test_a_missing_interpreter_is_one_sentence(tmp_path: Path, script: str, sentence: str) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    done = subprocess.run(
        ["sh", str(ROOT / ".ci" / "find-python"), str(fake)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "apt install" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- photos ---------------------------------------------------------------------------------------


def test_every_photo_is_small_and_attributed() -> None:
    folder = ROOT / "examples" / "photos"
    photos = sorted(folder.glob("*.jpg"))
    listed = re.findall(
        r"^\| `([^`]+)` \|", (folder / "ATTRIBUTION.md").read_text(), flags=re.MULTILINE
    )
    assert sorted(listed) == [path.name for path in photos]
    assert {"cat", "coffee", "rocket", "palace", "flower", "motorcycle"} <= {p.stem for p in photos}
    for path in photos:
        assert path.stat().st_size <= 100_000
        with Image.open(path) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert max(image.size) <= 512
