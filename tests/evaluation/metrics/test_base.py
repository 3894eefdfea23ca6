"""Scores as JSON."""

import json

from fuseprompt.evaluation.metrics.base import METRICS, Score, Scores


def test_json_has_the_published_metrics_in_order_then_the_others() -> None:
    values = {name: Score(0.5) for name in METRICS}
    values |= {"spice": Score(None, "no CoreNLP"), "distinct_1": Score(0.25)}
    shown = Scores(3, 0.5, values).as_json()
    assert list(shown) == ["images", "coverage", *METRICS, "distinct_1"]
    assert shown["cider"] == 0.5
    assert shown["spice"] == {"unavailable": "no CoreNLP"}


def test_a_score_by_a_model_names_it() -> None:
    score = Score(0.7, by="offline:image-text", independent=False, details={"of_people": 0.8})
    assert json.loads(json.dumps(score.as_json())) == {
        "value": 0.7,
        "by": "offline:image-text",
        "independent": False,
        "of_people": 0.8,
    }
