"""Proposers: a transfer is asked only for what can be a candidate, and nothing is lost by it."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from fuseprompt.objective.objective import BoundObjective
from fuseprompt.search.candidates import TokenClasses
from fuseprompt.search.exact import next_log_probs
from fuseprompt.search.proposers import Step, TransferProposing, _leave_out
from fuseprompt.text.round_trip import RoundTrip
from fuseprompt.transfer.base import Slots
from tests.reference import candidates as plain
from tests.search.fixtures import method, objective, problems
from tests.tiny import gpt2

TOKENIZER = gpt2().tokenizer


@dataclass
class Listening:
    """A scorer that writes down which continuations it is asked for."""

    asked: set[tuple[str, int]] = field(default_factory=set)
    cost: float = 0.0

    def new_words(self, slots: Slots, words: Tensor) -> Tensor:
        return (words % 7).float().expand(len(slots), -1)

    def continuations(self, slots: Slots, tokens: Tensor) -> Tensor:
        rows = zip(slots.left, tokens.tolist(), strict=True)
        self.asked |= {(text, token) for text, row in rows for token in row}
        return (tokens % 5).float() - 5.0


@pytest.fixture
def step() -> tuple[BoundObjective, Step]:
    search = method(max_end_nats=-1.0)
    state = search.init(objective().bind(problems()))
    for _ in range(2):
        state = search.step(state)
    return state.bound, Step(state.beams, next_log_probs(state.bound, state.beams), None)


def proposing(bound: BoundObjective, scorer: Listening, continuations: int) -> TransferProposing:
    classes = TokenClasses.of(TOKENIZER, int(gpt2().vocabulary.shape[0]))
    return TransferProposing(bound, classes, {"image": scorer}, 20, continuations)


def test_no_transfer_is_asked_for_what_cannot_be_a_candidate(
    step: tuple[BoundObjective, Step],
) -> None:
    bound, now = step
    scorer = Listening()
    # So many that some are read otherwise, whatever the tiny model holds likely.
    predictions = proposing(bound, scorer, 400).predict(now)
    assert not predictions.may.all()
    assert predictions.may.any(dim=1).all()
    for text, token in scorer.asked:
        assert TOKENIZER.encode(text + TOKENIZER.token_texts[token]) == [
            *TOKENIZER.encode(text),
            token,
        ]
    rows, ranks = torch.nonzero(predictions.may, as_tuple=True)
    pairs = zip(rows.tolist(), predictions.tokens[rows, ranks].tolist(), strict=True)
    assert scorer.asked == {(now.beams.texts[row], token) for row, token in pairs}


def test_the_candidates_are_those_of_the_plain_rule(
    step: tuple[BoundObjective, Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, now = step
    got = proposing(bound, Listening(), 30).propose(now)
    with monkeypatch.context() as patch:
        patch.setattr(RoundTrip, "survives", lambda *args: torch.ones_like(args[-1]).bool())
        scores = proposing(bound, Listening(), 30).predict(now).total({"image": 5.0})
    texts = now.beams.texts
    want = plain.choose(texts, scores.tolist(), TOKENIZER.encode, TOKENIZER.token_texts, width=20)
    assert list(zip(got.rows.tolist(), got.tokens.tolist(), strict=True)) == want


def test_what_may_not_be_appended_is_replaced_within_its_row() -> None:
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    may = torch.tensor([[False, True, True], [True, True, True], [False, False, False]])
    assert _leave_out(tokens, may).tolist() == [[2, 2, 3], [4, 5, 6], [7, 7, 7]]
    assert _leave_out(tokens[:, :0], may[:, :0]).shape == (3, 0)
