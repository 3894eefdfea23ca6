"""Our score is the model's own, for every family: tiny weights, real architectures and tokenizers.

Tolerance: |ours - theirs| <= 1e-5 max(1, |theirs|). The table of docs/models.md comes from the
same functions (`python -m tests.models.family_table`).
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from fuseprompt.models.hub import load
from fuseprompt.text.retokenize import PaddedIds
from tests.models.families import FAMILIES, Vocabularies, write_family
from tests.models.parity import (
    TEXTS,
    Built,
    end_error,
    error,
    gradient_error,
    ids_of,
    likelihood_errors,
    open_both,
    output_errors,
)

pytestmark = [
    pytest.mark.offline,
    # DeBERTa of the oldest transformers scripts a function when it is imported.
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]

TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda f: f.name)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("family")
    return open_both(request.param, write_family(request.param, folder, Vocabularies()))


def test_scores_are_the_library_s(built: Built) -> None:
    lm = built.family.kind == "lm"
    errors = likelihood_errors(built) if lm else output_errors(built)
    assert max(errors.values()) <= TOLERANCE, errors


def test_the_end_of_a_text_is_the_library_s(built: Built) -> None:
    if built.family.kind == "lm":
        assert end_error(built) <= TOLERANCE


def test_language_models_go_on_from_a_past(built: Built) -> None:
    if built.family.kind == "lm":
        assert built.ours.can_continue
        assert not any("keys and values" in note for note in built.ours.notes)


def test_only_causal_text_towers_go_on_from_a_stem(built: Built) -> None:
    if built.family.kind == "image-text":
        goes_on = built.family.name == "CLIP"
        assert (built.ours.start_cache() is not None) == goes_on
        assert any("cannot go on from a prefix" in note for note in built.ours.notes) != goes_on


def test_the_gradient_is_autograd_s(built: Built) -> None:
    if built.family.kind != "lm":
        assert gradient_error(built) <= TOLERANCE


def test_the_padding_side_of_the_folder_does_not_matter(built: Built, tmp_path: Path) -> None:
    if built.family.kind == "lm" or "SigLIP" in built.family.name:
        return
    before = built.ours.outputs(ids_of(built.ours, TEXTS))
    shutil.copytree(built.folder, tmp_path, dirs_exist_ok=True)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["padding_side"] = "left"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    model = load(tmp_path, device="cpu")
    after = model.outputs(ids_of(model, TEXTS))
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)


def test_ids_are_those_of_the_family_s_tokenizer(built: Built) -> None:
    ours = built.ours.tokenizer
    for text in TEXTS:
        assert ours.add_special_tokens(ours.encode(text)) == built.tokenizer(text)["input_ids"]


def test_the_longest_text_fits_and_no_longer_one_is_promised(built: Built) -> None:
    model = built.ours
    length = model.max_length
    if length > 1000:
        assert "It names no longest text." in model.notes
        return
    token = model.tokenizer.encode(" cat")[-1]
    body = [token] * (length - model.tokenizer.num_special)
    if built.family.kind == "lm":
        assert torch.isfinite(torch.cat(model.nll([body], [1]))).all()
    else:
        longest = PaddedIds.from_lists([model.tokenizer.add_special_tokens(body)])
        assert torch.isfinite(model.outputs(longest)).all()


@pytest.mark.parametrize("kind", ["lm", "classifier", "image-text", "sentence"])
def test_a_wrong_score_is_found(kind: str, tmp_path: Path) -> None:
    family = next(f for f in FAMILIES if f.kind == kind)
    folder = write_family(family, tmp_path, Vocabularies())
    both = open_both(family, folder)
    with torch.no_grad():
        layer = both.ours.text_side.get_input_embeddings()
        layer.weight[:, 0] *= 1.01
        both.ours.__dict__.pop("vocabulary", None)
    errors = likelihood_errors(both) if kind == "lm" else output_errors(both)
    assert max(errors.values()) > TOLERANCE
    if kind != "lm":
        assert gradient_error(both) > TOLERANCE


def test_the_error_is_relative_above_one() -> None:
    assert error(torch.tensor([101.0]), torch.tensor([100.0])) == pytest.approx(0.01)
    assert error(torch.tensor([0.2]), torch.tensor([0.1])) == pytest.approx(0.1)
    assert error(torch.tensor([float("nan")]), torch.tensor([0.1])) == float("inf")
