"""Hinted predictions are the text's loss, changed as the hint changes each word's likelihood."""

import torch

from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.objective.continuation import Continuation
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Positions
from fuseprompt.proposals.word_table import HintedScorer
from tests.tiny import gpt2, llama

PAIRS = [("{}", " at night"), ("the {} of the", " city")]
POSITIONS = Positions(("two people", "a cat"), ("", " sleeps"), torch.tensor([0, 1]))


def bound() -> BoundTerm:
    objective = Objective([Fluency(gpt2()), Continuation(llama())])
    problems = [Problem("0", {"continuation": PAIRS}), Problem("1", {"continuation": " night"})]
    return objective.bind(problems).terms[0]


def log_probs(text: str) -> torch.Tensor:
    return llama().next_log_probs(torch.tensor([llama().tokenizer.encode(text)]))[0]


def test_predictions_are_what_the_docstring_says(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    term = bound()
    scorer = AdditiveWordTable().init(gpt2(), llama(), term.table).bind(term)
    assert isinstance(scorer, HintedScorer)
    words = torch.nonzero(term.table.word_initial).flatten()[:20]
    got = scorer.word_initial(POSITIONS, words)
    assert scorer.cost == 3 * 3
    own = term.joint.score(["two people", "a cat sleeps"], torch.tensor([0, 1]))
    encode = llama().tokenizer.encode
    first = torch.tensor([encode("a" + gpt2().tokenizer.token_texts[w])[1] for w in words.tolist()])
    changes = [
        [
            log_probs("two people") - log_probs("This text is about at night.\ntwo people"),
            log_probs("This text is about of the.\nthe two people")
            - log_probs("This text is about of the city.\nthe two people"),
        ],
        [log_probs("a cat") - log_probs("This text is about night.\na cat")],
    ]
    following = [[len(encode(f)) for f in (" at night", " city")], [len(encode(" night"))]]
    for row in range(2):
        each = [c[first] / n for c, n in zip(changes[row], following[row], strict=True)]
        want = own[row] + 0.2 * sum(each) / len(each)
        torch.testing.assert_close(got[row], want, atol=1e-5, rtol=1e-5)
    longer = torch.tensor([gpt2().tokenizer.encode("ss")[:1]] * 2)
    again = scorer.word_internal(POSITIONS, longer)
    assert again.shape == (2, 1)
    assert torch.isfinite(again).all()
    assert scorer.cost == 3 * 3, "texts are read once per step"


def test_a_token_that_the_model_does_not_know_changes_nothing() -> None:
    term = bound()
    scorer = HintedScorer(term.joint, term.table)
    scorer.__dict__["_first"] = torch.full((gpt2().tokenizer.vocab_size,), -1)
    got = scorer.word_initial(POSITIONS, torch.tensor([5, 6]))
    assert (got[:, 0] == got[:, 1]).all()
    assert torch.isfinite(got).all()
