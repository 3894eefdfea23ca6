"""Several rounds a step: as many candidates as one round, none twice, and each round wiser."""

import json
from pathlib import Path

import pytest
import torch

from fuseprompt.search.autodan import AutoDAN
from fuseprompt.search.batch import join
from fuseprompt.search.engine import describe, minimize
from fuseprompt.search.proposers import Proposer, Step, TransferProposer
from fuseprompt.search.strategies import BeamSearch
from fuseprompt.search.surrogate import SurrogateProposer
from fuseprompt.transfer.word_table import WordTable
from tests.search.fixtures import objective, problems
from tests.tiny import gpt2


def setting(folder: Path, *, rounds: int, width: int = 8) -> SurrogateProposer:
    table = WordTable(folder)
    return SurrogateProposer(table, search_width=width, rounds=rounds, words=table)


def started(proposer: SurrogateProposer | TransferProposer) -> tuple[Proposer, Step]:
    bound = objective().bind(problems())
    search = AutoDAN(proposer=proposer)
    state = search.init(bound)
    log_probs = torch.stack(
        [gpt2().next_log_probs(state.beams.token_ids.ids[:1])[0] for _ in problems()]
    )
    return state.proposer, Step(state.beams, log_probs, lambda _: True)


def test_one_round_is_the_transfer_s_own_proposal(tmp_path: Path) -> None:
    one, step = started(setting(tmp_path, rounds=1))
    plain, _ = started(TransferProposer(WordTable(tmp_path), search_width=8))
    assert one.rounds == plain.rounds == 1
    found, expected = one.propose(step), plain.propose(step)
    assert found.texts == expected.texts
    assert torch.equal(found.predicted, expected.predicted)


def test_rounds_share_the_width_and_never_repeat(tmp_path: Path) -> None:
    proposer, step = started(setting(tmp_path, rounds=3))
    parts = []
    for number in range(proposer.rounds):
        now = Step(step.beams, step.log_probs, step.allows, round=number)
        found = proposer.propose(now)
        losses = torch.arange(len(found), dtype=torch.float32)
        proposer.observe(now, found, {"image": losses, "sentiment": losses})
        parts.append(found)
    assert [len(part) for part in parts] == [2 * 3, 3 * 3, 3 * 3]
    whole = join(parts)
    pairs = list(zip(whole.rows.tolist(), whole.tokens.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs) == 3 * 8


def test_what_was_found_decides_where_the_next_round_looks(tmp_path: Path) -> None:
    orders = []
    for sign in (1.0, -1.0):
        proposer, step = started(setting(tmp_path, rounds=2, width=16))
        first = proposer.propose(step)
        losses = sign * torch.linspace(0, 1, len(first))
        proposer.observe(step, first, {"image": losses, "sentiment": losses})
        after = Step(step.beams, step.log_probs, step.allows, round=1)
        orders.append(proposer.propose(after).texts)
    assert orders[0] != orders[1]


def test_a_new_step_starts_afresh(tmp_path: Path) -> None:
    proposer, step = started(setting(tmp_path, rounds=2))
    first = proposer.propose(step)
    proposer.observe(
        step, first, {"image": torch.rand(len(first)), "sentiment": -torch.rand(len(first))}
    )
    assert proposer.propose(step).texts == first.texts


def test_too_long_candidates_teach_nothing(tmp_path: Path) -> None:
    proposer, step = started(setting(tmp_path, rounds=2))
    first = proposer.propose(step)
    endless = torch.full((len(first),), float("inf"))
    proposer.observe(step, first, {"image": endless, "sentiment": endless})
    after = Step(step.beams, step.log_probs, step.allows, round=1)
    second = proposer.propose(after)
    assert bool(torch.isfinite(second.predicted).all())


def test_a_search_with_rounds_reports_the_truth(tmp_path: Path) -> None:
    method = AutoDAN(
        steps=3,
        proposer=setting(tmp_path, rounds=4),
        strategy=BeamSearch(2),
        max_end_nats=30.0,
    )
    results = minimize(objective(), method, problems())
    bound = objective().bind(problems())
    for i, result in enumerate(results):
        (exact,) = bound.evaluate([result.text], [i])
        assert abs(result.loss - exact.loss) <= 1e-5 * max(1.0, abs(exact.loss))
        assert result.history[0].evaluations == 8
        (alone,) = minimize(objective(), method, problems()[i])
        assert alone.text == result.text
    assert json.loads(json.dumps(describe(method)))["proposer"]["rounds"] == 4


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        SurrogateProposer(rounds=0)
