"""Turn taking: the primary proposes first, then each secondary."""

import torch

from fuseprompt.objective.fluency import Fluency
from fuseprompt.objective.objective import BoundObjective, Objective, Problem
from fuseprompt.objective.terms import TextSimilarity
from fuseprompt.search.autodan import AutoDAN
from fuseprompt.search.batch import Beams, Candidates, extend
from fuseprompt.search.candidates import TokenClasses
from fuseprompt.search.engine import minimize
from fuseprompt.search.exact import exact_losses
from fuseprompt.search.proposers import LanguageModelProposer, Step
from fuseprompt.search.turn_taking import TurnTaking
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.transfer.base import Slots, tokenize_new_word_slots
from fuseprompt.transfer.linearise import CommonWords, linearise
from tests.tiny import gpt2, sentence_encoder


def bound_objective() -> BoundObjective:
    objective = Objective([Fluency(gpt2()), TextSimilarity(sentence_encoder(), weight=5.0)])
    return objective.bind([Problem("0", {"text": "a happy dog"}, "a photo of")])


def step_after(text: str, number: int, *, given: int | None = None) -> Step:
    ids = gpt2().tokenizer.encode(text)
    token_ids = PaddedIds.from_lists([ids])
    beams = Beams(
        problems=torch.tensor([0]),
        token_ids=token_ids,
        num_given=torch.tensor([len(ids) if given is None else given]),
        nll_sum=torch.zeros(1, dtype=torch.float64),
        texts=(text,),
        losses=torch.zeros(1),
    )
    return Step(beams, gpt2().next_log_probs(token_ids.ids), lambda _: True, number)


def propose(text: str, number: int, *, width: int = 7) -> Candidates:
    bound = bound_objective()
    classes = TokenClasses(gpt2().tokenizer, gpt2().vocabulary.shape[0])
    return TurnTaking(width).start(bound, classes).propose(step_after(text, number))


def test_the_language_model_proposes_at_even_steps_and_the_secondary_at_odd_ones() -> None:
    bound = bound_objective()
    classes = TokenClasses(gpt2().tokenizer, gpt2().vocabulary.shape[0])
    own = LanguageModelProposer(7).start(bound, classes).propose(step_after("a photo of", 0))
    for number in (0, 2):
        assert torch.equal(propose("a photo of", number).tokens, own.tokens)
    assert not torch.equal(propose("a photo of", 1).tokens, own.tokens)


def test_a_secondary_proposes_its_own_vocabulary_by_first_order_score() -> None:
    text = "a photo of a"
    (term,) = bound_objective().terms
    slots = Slots.append((text,), torch.tensor([0]))
    ids = tokenize_new_word_slots(term.tokenizer, slots)
    linear = linearise(term, ids, slots.problems, CommonWords().points(term))
    scores = linear.predict_mean(term.vocabulary.float())[0]
    texts = term.tokenizer.token_texts
    got = propose(text, 1, width=10_000)
    by_text = {text + t: float(s) for t, s in zip(texts, scores, strict=True) if t}
    torch.testing.assert_close(got.predicted, torch.tensor([by_text[t] for t in got.texts]))
    assert got.predicted.tolist() == sorted(got.predicted.tolist())
    # Words that begin anew and pieces that lengthen the last one, each at most once.
    assert any(t.startswith(text + " ") for t in got.texts)
    assert any(not t.startswith(text + " ") for t in got.texts)
    assert len(set(got.texts)) == len(got)


def test_what_it_proposes_is_encoded_by_the_primary_into_one_token_or_several() -> None:
    tokenizer = gpt2().tokenizer
    text = "a photo of a"
    stem = tokenizer.encode(text)
    got = propose(text, 1, width=10_000)
    for new, row in zip(got.texts, got.appended.to_lists(), strict=True):
        assert tokenizer.encode(new) == [*stem, *row]
    assert {1, 2} <= set(got.appended.lengths.tolist())


def test_the_likelihood_of_a_word_is_that_of_all_its_tokens() -> None:
    got = propose("a photo of a", 1, width=10_000)
    stem = gpt2().tokenizer.encode("a photo of a")
    rows = [[*stem, *row] for row in got.appended.to_lists()]
    whole = gpt2().nll(rows, [len(stem)] * len(rows))
    torch.testing.assert_close(
        got.nll, torch.stack([x[:-1].sum() for x in whole]), atol=1e-4, rtol=1e-5
    )


def test_the_prefix_is_not_lengthened_and_nothing_begins_with_a_blank() -> None:
    assert all(t.startswith("a photo of ") for t in propose("a photo of", 1).texts)
    assert len(propose("", 1)) == 0


def test_a_candidate_of_several_tokens_is_judged_and_appended_whole() -> None:
    bound = bound_objective()
    (term,) = bound.terms
    beams = step_after("a photo of a", 1).beams
    got = propose("a photo of a", 1, width=10_000)
    losses, terms, _ = exact_losses(bound, beams, got)
    for i in range(0, len(got), 17):
        text, tokens = got.texts[i], got.appended.to_lists()[i]
        ids = PaddedIds.from_lists([term.tokenizer.frame(term.tokenizer.encode(text))])
        expected = float(term.loss(ids, torch.tensor([0])))
        assert abs(float(terms["similarity"][i]) - expected) <= 1e-5
        fluency = float(got.nll[i]) / len(tokens)
        assert abs(float(losses[i]) - (fluency + 5.0 * expected)) <= 1e-4
    longest = int(got.appended.lengths.argmax())
    grown = extend(beams, got, torch.tensor([longest]), losses)
    assert grown.token_ids.to_lists() == [gpt2().tokenizer.encode(got.texts[longest])]
    assert grown.num_chosen.tolist() == [int(got.appended.lengths[longest])]


def test_a_search_with_it_reports_true_losses() -> None:
    objective = bound_objective().objective
    problem = Problem("0", {"text": "a happy dog"}, "a photo of")
    method = AutoDAN(steps=4, proposer=TurnTaking(5))
    (result,) = minimize(objective, method, problem)
    (exact,) = objective.bind([problem]).evaluate([result.text], [0])
    assert abs(result.loss - exact.loss) <= 1e-5 * max(1.0, abs(exact.loss))
