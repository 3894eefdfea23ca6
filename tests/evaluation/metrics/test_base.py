"""What scores look like as JSON."""

import json

from fuseprompt.evaluation.metrics.base import METRICS, Judged, Scores, Unavailable


def test_json_has_the_keys_of_the_contract_in_order() -> None:
    scores = Scores(3, 0.5, 0.4, 0.3, 0.2, 0.1, 0.15, 0.35, 1.25, Unavailable("no CoreNLP"))
    shown = scores.as_json()
    assert list(shown) == ["images", "coverage", *METRICS]
    assert shown["cider"] == 1.25
    assert shown["spice"] == {"unavailable": "no CoreNLP"}


def test_a_judged_score_names_its_judge() -> None:
    judged = Judged(0.7, "offline:image-text", independent=False, details={"of_people": 0.8})
    scores = Scores(1, 1.0, *[Unavailable("x")] * 8, extra={"clip_score": judged})
    assert json.loads(json.dumps(scores.as_json()["clip_score"])) == {
        "value": 0.7,
        "by": "offline:image-text",
        "independent": False,
        "of_people": 0.8,
    }
