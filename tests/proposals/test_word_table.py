"""The word table: made once, read again, and never taken for another model's."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch.testing import assert_close

from fuseprompt.proposals.base import Positions
from fuseprompt.proposals.word_table import (
    TEMPLATE,
    WordTable,
    fingerprint,
    load_or_make,
    read_in_template,
)
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.text.tokenizer import Tokenizer
from tests.proposals.fake_loss import (
    DotLoss,
    LinearModel,
    exact,
    initial_tokens,
    linear_loss,
    similarity_loss,
    table_for,
)
from tests.text.tiny import LINES, byte_bpe
from tests.tiny import clip, gpt2, llama_tokenizer


def train_byte_bpe(lines: list[str]) -> Tokenizer:
    """Return a byte-level BPE of other lines than the shared ones."""
    rust = Rust(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    rust.train_from_iterator(lines, trainer)
    return Tokenizer(rust)


POSITIONS = Positions.append(("This is about", "This is about"), torch.tensor([0, 1]))


def test_in_the_frame_itself_the_table_is_the_exact_loss_of_the_framed_word(tmp_path: Path) -> None:
    loss = similarity_loss()
    table = table_for(loss)
    words = initial_tokens(table)
    positions = Positions.append(("is about", "is about"), torch.tensor([0, 1]))
    got = (
        WordTable(tmp_path)
        .init(gpt2(), loss.model, table)
        .bind(loss)
        .word_initial(positions, words)
    )
    texts = gpt2().tokenizer.token_texts
    for i in range(2):
        framed = [TEMPLATE.format(word=texts[w]) for w in words.tolist()]
        want = exact(loss, framed, [i] * len(words))
        torch.testing.assert_close(got[i], want, atol=1e-5, rtol=1e-5)


def test_continuations_are_the_exact_loss_of_the_whole_framed_word(tmp_path: Path) -> None:
    loss = similarity_loss()
    scorer = WordTable(tmp_path).init(gpt2(), loss.model, table_for(loss)).bind(loss)
    positions = Positions.append(("a photo of", "two don"), torch.tensor([0, 1]))
    texts = gpt2().tokenizer.token_texts
    joining = [i for i, t in enumerate(texts) if t.isalpha() and t.isascii()][:6]
    tokens = torch.tensor([joining] * 2)
    got = scorer.word_internal(positions, tokens)
    for i, (left, words) in enumerate((("of", 4), ("don", 3))):
        framed = [TEMPLATE.format(word=f" {left}{texts[t]}") for t in joining]
        want = exact(loss, framed, [i] * len(joining))
        mean = scorer._alone(i).mean()  # type: ignore[attr-defined]
        torch.testing.assert_close(got[i], mean + 3 / words * (want - mean), atol=1e-5, rtol=1e-5)


def test_long_texts_shrink_the_scores_towards_the_mean_and_keep_the_order(tmp_path: Path) -> None:
    loss = similarity_loss()
    table = table_for(loss)
    words = initial_tokens(table)
    scorer = WordTable(tmp_path).init(gpt2(), loss.model, table).bind(loss)
    zeros = torch.zeros(2, dtype=torch.long)
    positions = Positions.append(("is about", "a b c d e f g h i j k"), zeros)
    short, long = scorer.word_initial(positions, words)
    torch.testing.assert_close(long.std() / short.std(), torch.tensor(0.25))
    assert torch.equal(short.argsort(stable=True)[:10], long.argsort(stable=True)[:10])


def test_made_once_and_read_again(tmp_path: Path) -> None:
    loss = linear_loss()
    model = loss.model
    assert isinstance(model, LinearModel)
    table = table_for(loss)
    progress: list[tuple[int, int]] = []
    first = load_or_make(model, table, tmp_path, on_progress=lambda *at: progress.append(at))
    assert progress
    assert progress[-1][0] == progress[-1][1] == len(first[0])
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    calls = model.num_calls
    progress.clear()
    again = load_or_make(model, table, tmp_path, on_progress=lambda *at: progress.append(at))
    assert model.num_calls == calls + 1  # the probe
    assert not progress
    assert file.stat().st_mtime_ns == written
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_the_next_problems_find_the_table_in_memory(tmp_path: Path) -> None:
    loss = linear_loss()
    model = loss.model
    assert isinstance(model, LinearModel)
    table, words = table_for(loss), initial_tokens(table_for(loss))
    state = WordTable(tmp_path).init(gpt2(), model, table)
    first = state.bind(loss).word_initial(POSITIONS, words)
    (file,) = tmp_path.iterdir()
    file.unlink()
    calls = model.num_calls
    turned = replace(loss, targets=-loss.targets)
    second = state.bind(turned).word_initial(POSITIONS, words)
    assert model.num_calls == calls
    assert not list(tmp_path.iterdir())
    torch.testing.assert_close(second, -first)


@pytest.mark.parametrize("fault", ["rows", "width", "precision", "values"])
def test_a_file_that_does_not_fit_is_made_anew(tmp_path: Path, fault: str) -> None:
    loss = linear_loss()
    table = table_for(loss)
    vectors, _ = load_or_make(loss.model, table, tmp_path)
    (file,) = tmp_path.iterdir()
    wrong = {
        "rows": vectors[1:],
        "width": vectors[:, 1:],
        "precision": vectors.half(),
        "values": vectors + 0.1,
    }
    save_file({"vectors": wrong[fault].contiguous()}, file)
    again, _ = load_or_make(loss.model, table, tmp_path)
    assert torch.equal(again, vectors)
    assert torch.equal(load_file(file)["vectors"], vectors)


def test_words_that_the_secondary_reads_alike_share_a_row(tmp_path: Path) -> None:
    loss = linear_loss()
    lines = [*LINES, *(line.title() for line in LINES)]
    table = RetokenizationTable(train_byte_bpe(lines), loss.tokenizer)
    vectors, row_of = load_or_make(loss.model, table, tmp_path)
    pieces = table.pieces.to_lists()
    distinct = {tuple(p) for p in pieces if p}
    assert len(vectors) == len(distinct) < int((row_of >= 0).sum())  # "The" and "the" for WordPiece
    texts = table.primary.token_texts
    assert row_of[texts.index(" The")] == row_of[texts.index(" the")] >= 0
    for i, row in enumerate(row_of.tolist()):
        assert (row >= 0) == bool(pieces[i])
        if row >= 0:
            want = read_in_template(loss.model, [texts[i]])[0]
            torch.testing.assert_close(vectors[row], want, atol=1e-4, rtol=1e-4)


def test_another_model_under_the_same_name_is_noticed(tmp_path: Path) -> None:
    one = LinearModel(linear_loss().tokenizer)
    other = LinearModel(linear_loss().tokenizer)
    other.matrix = -one.matrix  # the body changes, embeddings and name do not
    table = RetokenizationTable(gpt2().tokenizer, one.tokenizer)
    assert fingerprint(one, table) == fingerprint(other, table)
    first, _ = load_or_make(one, table, tmp_path)
    second, _ = load_or_make(other, table, tmp_path)
    torch.testing.assert_close(second, -first)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_model_with_more_outputs_under_the_same_name_is_noticed(tmp_path: Path) -> None:
    one = LinearModel(linear_loss().tokenizer)
    other = LinearModel(linear_loss().tokenizer)
    other.matrix = torch.cat([one.matrix, one.matrix], 1)
    table = RetokenizationTable(gpt2().tokenizer, one.tokenizer)
    load_or_make(one, table, tmp_path)
    assert load_or_make(other, table, tmp_path)[0].shape[1] == 6


def test_fingerprints_tell_embeddings_names_and_tokenizers_apart() -> None:
    tokenizer = linear_loss().tokenizer
    table = RetokenizationTable(gpt2().tokenizer, tokenizer)
    prints = {
        fingerprint(LinearModel(tokenizer), table),
        fingerprint(LinearModel(tokenizer, seed=1), table),
        fingerprint(LinearModel(tokenizer, name="other"), table),
        fingerprint(LinearModel(tokenizer), RetokenizationTable(byte_bpe(300), tokenizer)),
        fingerprint(
            LinearModel(tokenizer),
            RetokenizationTable(gpt2().tokenizer, Tokenizer.from_hf(llama_tokenizer())),
        ),
    }
    assert len(prints) == 5


@pytest.mark.parametrize("start", [-4, -400, -4000])
def test_zeros_in_place_of_values_are_noticed(tmp_path: Path, start: int) -> None:
    loss = linear_loss()
    table = table_for(loss)
    first, _ = load_or_make(loss.model, table, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:start] + bytes(4) + whole[len(whole) + start + 4 :])
    assert torch.equal(first, load_or_make(loss.model, table, tmp_path)[0])
    assert file.read_bytes() == whole


@pytest.mark.parametrize("keep", [0, 100])
def test_a_damaged_file_is_made_anew(tmp_path: Path, keep: int) -> None:
    loss = linear_loss()
    table = table_for(loss)
    first, _ = load_or_make(loss.model, table, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:keep])
    again, _ = load_or_make(loss.model, table, tmp_path)
    assert torch.equal(first, again)


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    loss = linear_loss()
    table = table_for(loss)
    (tmp_path / "file").write_text("no folder")
    vectors, _ = load_or_make(loss.model, table, tmp_path / "file")
    assert torch.equal(vectors, load_or_make(loss.model, table, tmp_path / "folder")[0])


def test_a_primary_without_new_words_gives_an_empty_table(tmp_path: Path) -> None:
    loss = linear_loss()
    table = RetokenizationTable(byte_bpe(257), loss.tokenizer)
    vectors, row_of = load_or_make(loss.model, table, tmp_path)
    assert len(vectors) == 0
    assert (row_of == -1).all()


def test_words_without_a_row_get_the_worst_score(tmp_path: Path) -> None:
    loss: DotLoss = linear_loss()
    table = table_for(loss)
    scorer = WordTable(tmp_path).init(gpt2(), loss.model, table).bind(loss)
    words = initial_tokens(table)[:5]
    unwritten = torch.nonzero(table.pieces.lengths == 0).flatten()[:1]
    scores = scorer.word_initial(POSITIONS, torch.cat([words, unwritten]))
    assert (scores[:, -1] >= scores[:, :-1].max(1).values - 1e-6).all()


def test_the_default_folder_is_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    loss = linear_loss()
    WordTable().init(gpt2(), loss.model, table_for(loss)).bind(loss)
    assert len(list((tmp_path / "word-tables").glob("*.safetensors"))) == 1


def test_a_causal_tower_reads_the_beginning_of_the_frame_once(monkeypatch) -> None:
    model, words = clip(), [" dog", " the", " extraordinary"]
    rows = [model.tokenizer.encode(TEMPLATE.format(word=w)) for w in words]
    ids = PaddedIds.from_lists([model.tokenizer.add_special_tokens(r) for r in rows])

    def refuse(ids: PaddedIds) -> torch.Tensor:
        raise AssertionError

    monkeypatch.setattr(model, "outputs", refuse)
    assert model.start_cache() is not None
    with_cache = read_in_template(model, words)
    monkeypatch.undo()
    assert_close(with_cache, model.outputs(ids), atol=1e-5, rtol=1e-5)
