"""Compiled passes: a few compilations whatever the rows and lengths, and the same numbers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fuseprompt.errors import ModelError
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.compiled import GROWTH, SMALLEST, Backend, CompiledPass, compile_rows, cut
from fuseprompt.models.image_text import ClipModel
from fuseprompt.objective.fluency import Fluency
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.terms import ImageText
from fuseprompt.search.engine import Result, minimize
from fuseprompt.text.retokenize import PaddedIds
from tests.search.fixtures import method, problems
from tests.tiny import clip, gpt2, sentence_encoder

# The library's own, when a compiler is first used.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

SIZES = tuple(SMALLEST * GROWTH**i for i in range(6))


@pytest.fixture(autouse=True)
def no_shape_checks() -> Iterator[None]:
    """Switch off the checks of shapes that tests run with: the compiler would compile them, too."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


class Counting:
    """A compiler that runs what it is given as it is, and counts."""

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda t: t) -> None:
        self.count = 0
        self._change = change

    def __call__(self, module: Any, _: Any) -> Callable[..., Any]:
        self.count += 1
        return lambda *inputs: [self._change(t) for t in module.forward(*inputs)]


def total(ids: Tensor) -> Tensor:
    """Stands for a model: what it gives depends on every token and its place."""
    return torch.stack([ids.sum(dim=1), (ids * torch.arange(ids.shape[1])).sum(dim=1)], dim=1) / 7


@pytest.mark.parametrize("count", [1, 7, 8, 9, 31, 32, 40, 127, 200, 320, 1000, 2560])
def test_rows_are_cut_into_fixed_sizes(count: int) -> None:
    parts = list(cut(count))
    starts = [start for start, _ in parts]
    ends = [start + size for start, size in parts]
    assert starts == [0, *ends[:-1]]
    assert count <= ends[-1]
    assert all(size in SIZES for _, size in parts)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (5, [8]),
        (20, [32]),
        (40, [32, 8]),
        (100, [128]),
        (200, [128, 32, 32, 8]),
        (320, [128, 128, 32, 32]),
        (450, [512]),
    ],
)
def test_few_copies_and_few_passes(count: int, sizes: list[int]) -> None:
    assert [size for _, size in cut(count)] == sizes


def test_no_rows_are_no_pass() -> None:
    assert not list(cut(0))


def test_each_size_is_compiled_once_for_all_lengths() -> None:
    backend = Counting()
    quick = compile_rows(total, name="sums", backend=backend)
    generator = torch.Generator().manual_seed(0)
    for rows in (3, 8, 20, 40, 5):
        for length in (4, 9, 2, 17):
            ids = torch.randint(100, (rows, length), generator=generator)
            assert_close(quick(ids), total(ids))
    # 8 and 32 rows.
    assert backend.count == 2


def test_tensors_that_all_rows_share_may_change_their_length() -> None:
    backend = Counting()
    quick = CompiledPass(lambda at, table: (table[at] * 2, at), name="rows", backend=backend)
    for size in (5, 11, 30):
        table, at = torch.rand(size, 3), torch.randint(size, (9,))
        got = quick((at,), (table,))
        assert_close(got, (table[at] * 2, at))
    # 8 rows, and 1 more filled up to 8: one size.
    assert backend.count == 1


def test_other_numbers_are_refused() -> None:
    quick = compile_rows(total, name="sums", backend=Counting(lambda t: t * 1.01))
    with pytest.raises(ModelError, match=r"sums: compiled, its numbers differ by up to 8.6e-03"):
        quick(torch.ones(3, 4, dtype=torch.long))


def test_infinities_in_the_same_places_are_the_same_numbers() -> None:
    def mask(ids: Tensor) -> Tensor:
        return total(ids).masked_fill(total(ids) < 1.0, -float("inf"))

    ids = torch.ones(3, 4, dtype=torch.long)
    assert_close(compile_rows(mask, name="masked", backend=Counting())(ids), mask(ids))


def test_a_compiler_that_fails_says_what_to_do() -> None:
    def fail(_: Any, __: Any) -> Any:
        raise RuntimeError("no g++ here")

    quick = compile_rows(total, name="sums", backend=fail)
    with pytest.raises(ModelError, match=r"sums: .*no g\+\+ here\). Install a C\+\+"):
        quick(torch.ones(3, 4, dtype=torch.long))


def test_memory_that_runs_out_is_no_fault_of_the_compiler() -> None:
    def full(module: Any, _: Any) -> Any:
        def run(*_: Tensor) -> Any:
            raise torch.OutOfMemoryError("out of memory")

        return run

    quick = compile_rows(total, name="sums", backend=full)
    with pytest.raises(torch.OutOfMemoryError):
        quick(torch.ones(3, 4, dtype=torch.long))


def check_search(backend: Backend, count: Callable[[], int], *, most: int) -> None:
    """Search with compiled models and without: the same, and a second search compiles nothing."""
    search = method(steps=3, search_width=4)
    targets = [replace(p, targets={"image": p.targets["image"]}) for p in problems()[:2]]

    def found(lm: CausalLM, image: ClipModel) -> list[Result]:
        return minimize(Objective([Fluency(lm), ImageText(image, weight=5.0)]), search, targets)

    models = gpt2().compiled(backend=backend), clip().compiled(backend=backend)
    for got, want in zip(found(*models), found(gpt2(), clip()), strict=True):
        assert got.text == want.text
        assert got.terms == pytest.approx(want.terms, abs=1e-5, rel=1e-5)
        losses = [h.loss for h in want.history]
        assert [h.loss for h in got.history] == pytest.approx(losses, abs=1e-5, rel=1e-5)
    before = count()
    assert 3 <= before <= most
    found(*models)
    assert count() == before


def test_a_search_asks_for_fixed_sizes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def compile_nothing(compute: Any, **_: Any) -> Any:
        made.append(compute.__code__.co_name)

        def run(*tensors: Tensor) -> Any:
            assert len(tensors[0]) in SIZES
            assert len(tensors[0]) == int(compute.__code__.co_name.split("_")[1])
            return compute(*tensors)

        return run

    monkeypatch.setattr(torch, "compile", compile_nothing)
    # Next tokens, whole texts and ends of texts, each in three sizes at most.
    check_search("inductor", lambda: len(made), most=9)


@pytest.mark.slow
def test_a_search_compiles_only_once() -> None:
    backend = Counting()
    # More than sizes: one token or several, one stem or several, and the wrappers of the tests' own
    # checks of shapes cut a pass in two.
    check_search(backend, lambda: backend.count, most=40)


def test_gradients_and_likelihoods_are_computed_uncompiled() -> None:
    backend = Counting()
    encoder, lm = sentence_encoder().compiled(backend=backend), gpt2().compiled(backend=backend)
    ids = PaddedIds.from_lists([[2, 9, 11, 3], [2, 8, 3]])
    embeds = encoder.vocabulary[ids.ids].requires_grad_(True)
    outputs = encoder.outputs(ids, embeds=embeds)
    (grad,) = torch.autograd.grad(outputs.sum(), embeds)
    assert grad.abs().max() > 0
    lm.nll([[1, 2, 3]], [1])
    assert backend.count == 0
    assert_close(encoder.outputs(ids), outputs.detach())
    assert backend.count > 0


def test_weights_are_shared_and_the_model_stays_as_it_was() -> None:
    backend = Counting()
    plain = sentence_encoder()
    assert plain.compiled(backend=backend).vocabulary is plain.vocabulary
    plain.encode(["a cat"])
    assert backend.count == 0


@pytest.mark.slow
def test_the_real_compiler_gives_the_same_numbers() -> None:
    texts = ["the quick brown fox", "a cat", "an extraordinary motorcycle"] * 5
    assert_close(sentence_encoder().compiled().encode(texts), sentence_encoder().encode(texts))
