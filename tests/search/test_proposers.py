"""The proposer: a proposal is asked only for what can be a candidate, and nothing is lost by it."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from fuseprompt.methods.autodan import AutoDANState
from fuseprompt.proposals.base import Positions
from fuseprompt.search.candidates import Proposer, _leave_out
from fuseprompt.search.scoring import next_log_probs
from fuseprompt.text.token_classes import RoundTrip
from tests.methods.fixtures import method, objective, problems
from tests.reference import candidates as plain
from tests.tiny import gpt2

TOKENIZER = gpt2().tokenizer


@dataclass
class Listening:
    """A scorer that writes down which word-internal tokens it is asked for."""

    asked: set[tuple[str, int]] = field(default_factory=set)
    cost: float = 0.0

    def word_initial(self, positions: Positions, words: Tensor) -> Tensor:
        return (words % 7).float().expand(len(positions), -1)

    def word_internal(self, positions: Positions, tokens: Tensor) -> Tensor:
        rows = zip(positions.left, tokens.tolist(), strict=True)
        self.asked |= {(text, token) for text, row in rows for token in row}
        return (tokens % 5).float() - 5.0


@dataclass
class Silent:
    """A scorer that says nothing."""

    cost: float = 0.0

    def word_initial(self, positions: Positions, words: Tensor) -> Tensor:
        return torch.zeros(len(positions), len(words))

    def word_internal(self, positions: Positions, tokens: Tensor) -> Tensor:
        return torch.zeros(tokens.shape)


@pytest.fixture
def state() -> AutoDANState:
    search = method(max_end_nats=-1.0)
    state = search.init(objective().bind(problems()))
    for _ in range(2):
        state = search.step(state)
    return state


def proposing(state: AutoDANState, scorer: Listening, num_word_internal: int) -> Proposer:
    scorers = {"image": scorer, "sentiment": Silent()}
    return Proposer(state.bound, state.proposer.classes, scorers, num_word_internal)


def test_no_proposal_is_asked_for_what_cannot_be_a_candidate(state: AutoDANState) -> None:
    scorer, active = Listening(), state.active
    # So many that some are read otherwise, whatever the tiny model holds likely.
    log_probs = next_log_probs(state.bound, active)
    proposer = proposing(state, scorer, 400)
    tokens, _, may = proposer._lengthening(active, log_probs)
    scores = proposer.scores(active, log_probs)
    assert not may.all()
    assert may.any(dim=1).all()
    for text, token in scorer.asked:
        assert TOKENIZER.encode(text + TOKENIZER.token_texts[token]) == [
            *TOKENIZER.encode(text),
            token,
        ]
    rows, ranks = torch.nonzero(may, as_tuple=True)
    pairs = zip(rows.tolist(), tokens[rows, ranks].tolist(), strict=True)
    assert scorer.asked == {(active.texts[row], token) for row, token in pairs}
    assert scores[rows, tokens[rows, ranks]].isfinite().all()
    internal = state.proposer.classes.word_internal.expand(scores.shape)
    assert int(scores[internal].isfinite().sum()) == len(rows)


def test_the_candidates_are_those_of_the_plain_rule(
    state: AutoDANState, monkeypatch: pytest.MonkeyPatch
) -> None:
    active, log_probs = state.active, next_log_probs(state.bound, state.active)
    got = proposing(state, Listening(), 30).propose(active, log_probs, width=20)
    with monkeypatch.context() as patch:
        patch.setattr(RoundTrip, "survives", lambda *args: torch.ones_like(args[-1]).bool())
        scores = proposing(state, Listening(), 30).scores(active, log_probs)
    texts = active.texts
    want = plain.choose(texts, scores.tolist(), TOKENIZER.encode, TOKENIZER.token_texts, width=20)
    assert list(zip(got.rows.tolist(), got.tokens.tolist(), strict=True)) == want


def test_what_may_not_be_appended_is_replaced_within_its_row() -> None:
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    may = torch.tensor([[False, True, True], [True, True, True], [False, False, False]])
    assert _leave_out(tokens, may).tolist() == [[2, 2, 3], [4, 5, 6], [7, 7, 7]]
    assert _leave_out(tokens[:, :0], may[:, :0]).shape == (3, 0)
