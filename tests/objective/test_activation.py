"""Activations are those of plain transformers for a layer, pooled; gradients are autograd's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fuseprompt.errors import ModelError, ProblemError
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.models.hub import load
from fuseprompt.objective.activation import Activation, HiddenStates
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Positions
from fuseprompt.search.minimize import minimize
from fuseprompt.text.retokenize import PaddedIds
from tests import tiny

TEXTS = ("a cat sleeps", "two people are walking along the beach", "the museum")
MODELS: dict[str, tuple[Any, Any]] = {
    "encoder": (tiny.sentence_encoder, tiny.bert_module),
    "classifier": (tiny.classifier, tiny.classifier_module),
    "gpt2": (tiny.gpt2, tiny.gpt2_module),
    "llama": (tiny.llama, tiny.llama_module),
}


def ids_of(model: Any, texts: tuple[str, ...] = TEXTS) -> PaddedIds:
    add = model.tokenizer.add_special_tokens
    return PaddedIds.from_lists([add(model.tokenizer.encode(t)) for t in texts])


def by_hand(model: Any, module: Any, text: str, layer: int, embeds: Any = None) -> torch.Tensor:
    """Return what plain transformers gives for each token of a text after a block."""
    tokenizer = model.tokenizer
    before = getattr(model, "begin_ids", tokenizer.prefix_ids)
    own = tokenizer.encode(text)
    ids = torch.tensor([[*before, *own, *tokenizer.suffix_ids]])
    inputs = {"input_ids": ids} if embeds is None else {"inputs_embeds": embeds}
    hidden = module(**inputs, output_hidden_states=True).hidden_states[layer + 1][0]
    return hidden[len(before) : len(before) + len(own)]


def pooled(hidden: torch.Tensor, pool: str) -> torch.Tensor:
    if pool == "max":
        return hidden.amax(0)
    return hidden[-1] if pool == "last" else hidden.mean(0)


@pytest.mark.parametrize("pool", ["max", "last", "mean"])
@pytest.mark.parametrize("name", MODELS)
def test_units_are_those_of_plain_transformers(name: str, pool: str) -> None:
    model, module = (make() for make in MODELS[name])
    states = HiddenStates(model, 0, pool=pool)
    got = states.outputs(ids_of(model))
    with torch.no_grad():
        want = torch.stack([pooled(by_hand(model, module, t, 0), pool) for t in TEXTS])
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    directions = torch.randn(3, 16, generator=torch.manual_seed(0))
    offsets = torch.tensor([1.0, -2.0, 0.5])
    states = HiddenStates(model, 0, pool=pool, directions=directions, offsets=offsets)
    with torch.no_grad():
        tokens = [by_hand(model, module, t, 0) @ directions.T + offsets for t in TEXTS]
    want = torch.stack([pooled(each, pool) for each in tokens])
    torch.testing.assert_close(states.outputs(ids_of(model)), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_autograds(name: str) -> None:
    model, module = (make() for make in MODELS[name])
    term = Activation(HiddenStates(model, 0, pool="max"))
    ids = ids_of(model, TEXTS[:1])
    embeds = model.vocabulary[ids.ids].clone().requires_grad_(True)
    target = term.encode_target(5)[None]
    loss = term.compare(term.model.outputs(ids, embeds=embeds), target)
    (got,) = torch.autograd.grad(loss.sum(), embeds)
    plain = model.vocabulary[ids.ids].clone().requires_grad_(True)
    begun = getattr(model, "begin_ids", ())[len(model.tokenizer.prefix_ids) :]
    before = model.vocabulary[torch.tensor([begun], dtype=torch.long)].reshape(1, -1, 16)
    hidden = by_hand(model, module, TEXTS[0], 0, torch.cat([before, plain], dim=1))
    want = -hidden.amax(0)[5]
    torch.testing.assert_close(loss[0], want, atol=1e-5, rtol=1e-5)
    (grad,) = torch.autograd.grad(want, plain)
    torch.testing.assert_close(got, grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pool", ["max", "last", "mean"])
@pytest.mark.parametrize("name", MODELS)
def test_many_texts_together_are_as_each_alone(name: str, pool: str) -> None:
    model, module = (make() for make in MODELS[name])
    states = HiddenStates(model, 0, pool=pool)
    heads = ("two people are", "two people", "the", "a cat")
    texts = tuple(f"{head} {tail}" for head in heads for tail in ("walking", "two", "a cat sleeps"))
    ids = ids_of(model, texts * 4 + (() if name == "gpt2" else ("",)))
    torch.testing.assert_close(states.outputs_of_many(ids), states.outputs(ids))
    offsets, each = states.trace(texts[2])
    with torch.no_grad():
        torch.testing.assert_close(each, by_hand(model, module, texts[2], 0))
    assert (offsets[0][0], offsets[-1][1], len(offsets)) == (0, len(texts[2]), len(each))


def test_beginnings_that_texts_share_are_read_once() -> None:
    states = HiddenStates(tiny.gpt2(), 1)
    sizes = []
    hook = (
        tiny.gpt2_module()
        .transformer.h[0]
        .register_forward_hook(lambda _m, args, _o: sizes.append(args[0].shape[1]))
    )
    with hook:
        states.outputs_of_many(ids_of(tiny.gpt2(), ("two people", "two people two", "two a")))
    begun, whole = len(tiny.gpt2().begin_ids), tiny.gpt2().tokenizer.encode
    assert sizes[-1] == begun + len(whole("two people two")) + len(whole("two a")) - len(
        whole("two")
    )


def test_a_sum_of_units_is_a_target() -> None:
    term = Activation(HiddenStates(tiny.gpt2(), 0))
    outputs = term.model.outputs(ids_of(tiny.gpt2()))
    target = term.encode_target({3: 0.5, 7: -2.0})
    got = term.compare(outputs, target.expand(len(outputs), -1))
    torch.testing.assert_close(got, -(0.5 * outputs[:, 3] - 2.0 * outputs[:, 7]))


def test_a_language_model_reads_what_comes_before_every_text() -> None:
    prompted = tiny.gpt2().prompted("two people")
    states = HiddenStates(prompted, 1, pool="mean")
    ids = ids_of(prompted)
    embeds = prompted.vocabulary[ids.ids]
    with torch.no_grad():
        want = torch.stack([by_hand(prompted, Whole(), t, 1).mean(0) for t in TEXTS])
    for got in (states.outputs(ids), states.outputs(ids, embeds=embeds)):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    plain = HiddenStates(tiny.gpt2(), 1, pool="mean").outputs(ids)
    assert (plain - want).abs().max() > 0.01


class Whole:
    """Hidden states of blocks alone: transformers gives the last one after the final norm."""

    def __call__(self, input_ids: Any, output_hidden_states: bool) -> Any:
        """Return the hidden states after each block."""
        del output_hidden_states
        found: list[Any] = [None]
        blocks = tiny.gpt2_module().transformer.h
        hooks = [
            b.register_forward_hook(
                lambda _m, _a, o: found.append(o[0] if isinstance(o, tuple) else o)
            )
            for b in blocks
        ]
        tiny.gpt2_module()(input_ids=input_ids)
        for hook in hooks:
            hook.remove()
        states = [o[0] if isinstance(o, tuple) else o for o in found]
        return type("Output", (), {"hidden_states": states})


def test_an_empty_text_has_the_tokens_around_it() -> None:
    model = tiny.sentence_encoder()
    got = HiddenStates(model, 1, pool="mean").outputs(ids_of(model, ("",)))
    ids = torch.tensor([model.tokenizer.add_special_tokens([])])
    with torch.no_grad():
        want = tiny.bert_module()(input_ids=ids).last_hidden_state.mean(1)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_a_module_is_found_by_its_name_and_left_without_hooks() -> None:
    module = tiny.bert_module().encoder.layer[1].intermediate
    hooks = len(module._forward_hooks)
    states = HiddenStates(tiny.sentence_encoder(), "encoder.layer.1.intermediate", pool="last")
    seen: list[Any] = []
    with module.register_forward_hook(lambda _m, _a, output: seen.append(output)):
        tiny.bert_module()(input_ids=ids_of(tiny.sentence_encoder(), TEXTS[:1]).ids)
    got = states.outputs(ids_of(tiny.sentence_encoder(), TEXTS[:1]))
    torch.testing.assert_close(got[0], seen[0][0, -2])
    assert got.shape[1] == 24
    assert len(module._forward_hooks) == hooks


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_latent_is_that_of_the_encoder_in_a_file(tmp_path: Path, is_turned: bool) -> None:
    weight = torch.randn(5, 16, generator=torch.manual_seed(1))
    bias, threshold = torch.arange(5.0), torch.arange(5.0) / 2
    file = tmp_path / "sae.safetensors"
    stored = weight.T.contiguous() if is_turned else weight
    save_file({"W": stored, "b": bias, "threshold": threshold}, file)
    model = tiny.sentence_encoder()
    states = HiddenStates.of_sae(model, 1, file, [3, 0])
    with torch.no_grad():
        tokens = [by_hand(model, tiny.bert_module(), t, 1) for t in TEXTS]
    want = torch.stack([(h @ weight[[3, 0]].T + bias[[3, 0]]).amax(0) for h in tokens])
    torch.testing.assert_close(states.outputs(ids_of(model)), want, atol=1e-5, rtol=1e-5)
    assert states.thresholds is not None
    assert states.thresholds.tolist() == [1.5, 0.0]
    with pytest.raises(ModelError, match=r"latent 5 is not there: there are 5, 0 to 4"):
        HiddenStates.of_sae(model, 1, file, [5])
    save_file({"W": weight}, file)
    plain = HiddenStates.of_sae(model, 1, file, [3]).outputs(ids_of(model))
    torch.testing.assert_close(plain[:, 0] + 3.0, want[:, 0], atol=1e-5, rtol=1e-5)


def test_a_file_that_is_no_encoder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sae.safetensors"
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        HiddenStates.of_sae(tiny.gpt2(), 0, file, [0])
    save_file({"weights": torch.zeros(2, 2)}, file)
    with pytest.raises(ModelError, match=r"expected an SAE's encoder with a matrix W.*weights"):
        HiddenStates.of_sae(tiny.gpt2(), 0, file, [0])
    save_file({"W": torch.zeros(3, 5)}, file)
    with pytest.raises(ModelError, match=r"has 16 units; expected directions of shape \(n, 16\)"):
        HiddenStates.of_sae(tiny.gpt2(), 0, file, [0])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (2, "tiny-bert: layer 2 is not there: there are 2, 0 to 1"),
        (-1, "layer -1 is not there: there are 2"),
        ("encoder.layer.7", r"no module 'encoder.layer.7' among its \d+, which are named like"),
        ("pooler", r"expected a vector for each token from the layer, got \(1, 16\)"),
    ],
)
def test_a_layer_that_is_not_there_is_refused(layer: int | str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        HiddenStates(tiny.sentence_encoder(), layer)


def test_what_cannot_be_hooked_or_pooled_is_refused() -> None:
    with pytest.raises(ModelError, match="tiny-clip: expected a sentence encoder, a classifier or"):
        HiddenStates(tiny.clip(), 0)
    with pytest.raises(ModelError, match=r"pool must be one of .*'mean'\], was: 'sum'"):
        HiddenStates(tiny.gpt2(), 0, pool="sum")
    with pytest.raises(ModelError, match=r"has 16 units; expected directions of shape"):
        HiddenStates(tiny.gpt2(), 0, directions=torch.zeros(2, 15))


@pytest.mark.parametrize("unit", [16, -1, 2.0, "5", None])
def test_a_unit_that_is_not_there_is_refused(unit: object) -> None:
    term = Activation(HiddenStates(tiny.gpt2(), 0))
    with pytest.raises(ProblemError, match=r"no unit .* has 16, numbered 0 to 15"):
        term.encode_target(unit)


def test_other_directions_have_other_tables() -> None:
    names = [
        HiddenStates(tiny.gpt2(), 0, pool=pool, directions=directions).name
        for pool in ("max", "mean")
        for directions in (None, torch.eye(16)[:1], torch.eye(16)[1:2])
    ]
    assert len({*names}) == 6


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_the_word_table_moves_an_activation_by_what_a_word_adds(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    states = HiddenStates(tiny.sentence_encoder(), 1, pool=pool)
    objective = Objective([Fluency(tiny.gpt2()), Activation(states)])
    term = objective.bind([Problem("0", {"unit": 3})]).terms[0]
    state = AdditiveWordTable().init(tiny.gpt2(), states, term.table)
    positions = Positions.append(("two people",), torch.tensor([0]))
    words = torch.nonzero(term.table.word_initial).flatten()[:20]
    got = state.bind(term).word_initial(positions, words)[0]
    own = states.outputs(ids_of(states, ("two people",)))[0, 3]
    moves = (state.vectors[state.words.row_of[words]] - state.mean)[:, 3]
    want = own + 0.75 * moves
    if pool == "max":
        want = state.vectors[state.words.row_of[words], 3].clamp_min(float(own))
    torch.testing.assert_close(got, -want, atol=1e-5, rtol=1e-5)


def test_a_search_drives_a_unit(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    states = HiddenStates(tiny.sentence_encoder(), 1, pool="mean")
    objective = Objective([Fluency(tiny.gpt2(), weight=0.01), Activation(states, weight=10.0)])
    method = AutoDAN(steps=3, search_width=8, beam_width=2)
    (result,) = minimize(objective, method, unit=3, prefix="two people")
    ids = ids_of(states, ("two people", result.text))
    before, after = states.outputs(ids)[:, 3].tolist()
    assert after > before
    assert result.terms["activation"] == pytest.approx(-after, abs=1e-5)


def test_a_model_in_bfloat16_is_read_again_in_fp32(tmp_path: Path) -> None:
    folder = tiny.save_folder(tmp_path, tiny.bert_module(), tiny.bert_tokenizer())
    half, full = (load(folder, device="cpu", dtype=d) for d in ("bfloat16", "float32"))
    assert isinstance(half, SentenceEncoder)
    assert isinstance(full, SentenceEncoder)
    directions = torch.eye(16)[:3]
    states = HiddenStates(half, 0, directions=directions)
    assert states.dtype == torch.bfloat16
    again, expected = states.in_fp32(), HiddenStates(full, 0, directions=directions)
    assert (again.dtype, again.name) == (torch.float32, expected.name)
    ids = PaddedIds.from_lists([[2, 40, 41, 3]])
    torch.testing.assert_close(again.outputs(ids), expected.outputs(ids))
    assert 0 < (states.outputs(ids) - expected.outputs(ids)).abs().max() < 0.1
    assert expected.in_fp32() is expected
