"""Models in bfloat16: half the memory, near the same numbers, and losses that are of fp32."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fuseprompt.cli.main import main
from fuseprompt.errors import ModelError
from fuseprompt.evaluation.runs.searcher import Captioner
from fuseprompt.models import pretrained
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.hub import load, pick_dtype
from fuseprompt.models.image_text import TwoTowerModel
from fuseprompt.models.kv_cache import PrefixCache
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.terms import Fluency, ImageText, Label
from fuseprompt.proposals.word_table import fingerprint
from fuseprompt.search.minimize import Result
from fuseprompt.tasks.caption import Caption, caption, objective_of
from fuseprompt.tasks.models import load_models
from fuseprompt.tasks.settings import CaptionSettings, model_ids
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from tests.models.test_gguf import settings as gguf_settings
from tests.models.test_gguf import write
from tests.tasks.fixtures import save_models, save_pictures
from tests.tiny import (
    bert_module,
    bert_tokenizer,
    classifier_module,
    clip_module,
    clip_processor,
    clip_tokenizer,
    gpt2_module,
    gpt2_tokenizer,
    llama_module,
    llama_tokenizer,
    save_folder,
)

Parts = tuple[Callable[[], Any], ...]

PARTS: dict[str, Parts] = {
    "gpt2": (gpt2_module, gpt2_tokenizer),
    "llama": (llama_module, llama_tokenizer),
    "classifier": (classifier_module, bert_tokenizer),
    "sentence": (bert_module, bert_tokenizer),
    "clip": (clip_module, clip_tokenizer, clip_processor),
}
SMALL = CaptionSettings(proposal="gradient", max_tokens=2, beam_width=2, search_width=4)


def rows(model: Any) -> PaddedIds:
    tokenizer = model.tokenizer
    texts = ("a cat sits", "the museum of modern art", "a")
    return PaddedIds.from_lists([tokenizer.add_special_tokens(tokenizer.encode(t)) for t in texts])


@pytest.mark.parametrize("kind", PARTS)
def test_weights_are_half_as_large_and_outputs_near(tmp_path: Path, kind: str) -> None:
    folder = save_folder(tmp_path, *(part() for part in PARTS[kind]))
    full: Any = load(folder, device="cpu")
    half: Any = load(folder, device="cpu", dtype="bfloat16")
    assert half.dtype == torch.bfloat16
    assert {w.dtype for w in half.module.parameters()} == {torch.bfloat16}
    got, want = half.outputs(rows(half)), full.outputs(rows(full))
    assert got.dtype == half.vocabulary.dtype == torch.float32
    assert 0.0 < (got - want).abs().max() < 0.1 * want.abs().max()
    # What a model is found to be does not depend on how exact its numbers are.
    for fact in ("can_continue", "padded_to", "max_length", "begin_ids", "notes"):
        assert getattr(half, fact, None) == getattr(full, fact, None)
    if kind == "clip":
        picture = Image.new("RGB", (40, 30), "red")
        seen = half.image_features([picture])
        assert seen.dtype == torch.float32
        assert float(seen.norm()) == pytest.approx(1.0, abs=1e-5)
        torch.testing.assert_close(seen, full.image_features([picture]), atol=0.05, rtol=0.0)
        assert half.start_cache() is not None


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_probabilities_sum_to_one_and_keys_and_values_are_kept_small(
    tmp_path: Path, kind: str
) -> None:
    lm = load(save_folder(tmp_path, *(p() for p in PARTS[kind])), device="cpu", dtype="bfloat16")
    assert isinstance(lm, CausalLM)
    cache = PrefixCache(lm)
    ids = rows(lm)
    log_probs = cache.next_log_probs(ids)
    # In bfloat16 a sum over a vocabulary would be off in the third digit.
    torch.testing.assert_close(log_probs.exp().sum(dim=-1), torch.ones(len(ids)))
    assert {t.dtype for e in cache._known for kv in e.key_values for t in kv} == {torch.bfloat16}


@pytest.mark.parametrize("kind", ["sentence", "clip", "classifier"])
def test_gradients_reach_embeddings_in_fp32(tmp_path: Path, kind: str) -> None:
    folder = save_folder(tmp_path, *(part() for part in PARTS[kind]))
    grads = []
    for dtype in ("float32", "bfloat16"):
        model: Any = load(folder, device="cpu", dtype=dtype)
        embeds = model.vocabulary[rows(model).ids].clone().requires_grad_()
        (grad,) = torch.autograd.grad(model.outputs(rows(model), embeds=embeds)[:, 0].sum(), embeds)
        assert grad.dtype == torch.float32
        grads.append(grad.flatten())
    assert float(torch.nn.functional.cosine_similarity(*grads, dim=0)) > 0.98


def test_a_gguf_file_and_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))
    file = write(tmp_path / "x.gguf", gguf_settings())
    half = load(file, device="cpu", dtype=torch.bfloat16)
    assert isinstance(half, CausalLM)
    prompted = half.prompted("Write a caption.")
    full = prompted.in_fp32()
    assert full.dtype == torch.float32
    assert (full.begin_ids, full.max_length) == (prompted.begin_ids, prompted.max_length)
    expected = load(file, device="cpu")
    assert isinstance(expected, CausalLM)
    ids = half.tokenizer.encode("a cat")
    torch.testing.assert_close(
        full.nll([ids], [0]), expected.prompted("Write a caption.").nll([ids], [0])
    )


@pytest.mark.parametrize("dtype", ["float16", "int8", torch.float64, ""])
def test_another_type_is_refused(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(ModelError, match="expected one of float32, bfloat16"):
        load(tmp_path, dtype=dtype)
    assert pick_dtype(torch.bfloat16) == pick_dtype("bfloat16")


def captions(folder: Path, models: Any, *, sentiment: str | None = None) -> list[Result]:
    files = save_pictures(folder / "pictures", "a.png", "b.png")
    settings = CaptionSettings(**{**vars(SMALL), "sentiment": sentiment})
    found = list(caption(files, settings, models=models, device="cpu"))
    return [one.result for one in found if isinstance(one, Caption)]


@pytest.mark.parametrize("sentiment", [None, "positive"])
def test_losses_are_those_of_the_same_models_in_fp32(tmp_path: Path, sentiment: str | None) -> None:
    ids = model_ids(str(save_models(tmp_path)))
    has = sentiment is not None
    half = load_models(ids, with_sentiment=has, device="cpu", dtype="bfloat16")
    full = load_models(ids, with_sentiment=has, device="cpu")
    names = {"fluency", "image", *(["sentiment"] if has else [])}
    settings = CaptionSettings(**{**vars(SMALL), "sentiment": sentiment})
    for result in captions(tmp_path, half, sentiment=sentiment):
        assert result.settings["dtype"] == dict.fromkeys(names, "bfloat16")
        assert result.settings["loss_dtype"] == dict.fromkeys(names, "float32")
        for scored in (result, *result.alternatives):
            bound = objective_of(settings, full).bind([result.problem])
            (exact,) = bound.evaluate([scored.text], [0])
            assert scored.loss == pytest.approx(exact.loss, abs=1e-5)
            assert scored.terms == pytest.approx(exact.terms, abs=1e-5)
        losses = [scored.loss for scored in result.alternatives]
        assert losses == sorted(losses)
    for result in captions(tmp_path, full, sentiment=sentiment):
        assert not {"dtype", "loss_dtype"} & result.settings.keys()


def test_losses_are_marked_where_models_do_not_fit_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save_models(tmp_path)
    small = 4 * sum(w.numel() for w in gpt2_module().parameters())
    monkeypatch.setattr(pretrained, "has_room", lambda num_bytes, _: num_bytes <= small)
    half = load_models(str(file), device="cpu", dtype="bfloat16")
    for result in captions(tmp_path, half):
        assert result.settings["loss_dtype"] == {"fluency": "float32", "image": "bfloat16"}
    with pytest.raises(ModelError, match=r"of image do not fit .* Leave --dtype out"):
        Captioner(half, SMALL, [""])
    (picture,) = save_pictures(tmp_path, "x.png")
    options = ["--dtype", "bfloat16", "--max-tokens", "2", "--proposal", "gradient"]
    assert main(["caption", "--models", str(file), *options, picture]) == 0
    assert "losses in bfloat16" in capsys.readouterr().out


def test_the_command_line_takes_a_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save_models(tmp_path)
    (picture,) = save_pictures(tmp_path, "x.png")
    options = ["--max-tokens", "2", "--proposal", "gradient", "--json"]
    assert main(["caption", "--models", str(file), "--dtype", "bfloat16", *options, picture]) == 0
    (line,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert line["settings"]["loss_dtype"] == {"fluency": "float32", "image": "float32"}
    assert main(["caption", "--dtype", "float16", picture]) == 2


def test_models_that_came_from_nowhere_are_used_as_they_are() -> None:
    from fuseprompt.text.tokenizer import Tokenizer

    module = type(gpt2_module())(gpt2_module().config).to(torch.bfloat16)
    lm = CausalLM(module, Tokenizer.from_hf(gpt2_tokenizer()), name="made here")
    objective = Objective([Fluency(lm)])
    assert objective.in_fp32() is objective
    assert objective.dtypes == {"fluency": "bfloat16"}


def test_a_table_of_words_is_of_one_type(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, *(part() for part in PARTS["clip"]))
    names = set()
    for dtype in ("float32", "bfloat16"):
        model: Any = load(folder, device="cpu", dtype=dtype)
        names.add(fingerprint(model, RetokenizationTable(model.tokenizer, model.tokenizer)))
    assert len(names) == 2


@pytest.mark.offline
def test_the_offline_models_in_bfloat16() -> None:
    half: Any = load("offline:image-text", device="cpu", dtype="bfloat16")
    full: Any = load("offline:image-text", device="cpu")
    assert isinstance(half, TwoTowerModel)
    assert half.dtype == torch.bfloat16
    exact = half.in_fp32()
    torch.testing.assert_close(exact.outputs(rows(exact)), full.outputs(rows(full)))
    difference = (half.outputs(rows(half)) - full.outputs(rows(full))).abs().max()
    assert 0.0 < difference < 0.02
    objective = Objective(
        [
            Fluency(load("offline:lm", device="cpu", dtype="bfloat16")),  # type: ignore[arg-type]
            ImageText(half),
            Label(load("offline:sentiment", device="cpu")),  # type: ignore[arg-type]
        ]
    )
    assert objective.dtypes == {"fluency": "bfloat16", "image": "bfloat16"}
    assert objective.in_fp32().dtypes == {}
