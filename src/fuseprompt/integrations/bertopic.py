"""BERTopic with labels of ours in place of its lists of words.

    BERTopic(representation_model=FuseLabels()).fit_transform(documents)

It gives each topic one label of a few words; the outliers, topic -1, keep their words.
"""

from collections.abc import Mapping
from typing import Any

from fuseprompt.objective.objective import Objective
from fuseprompt.tasks.job import Failure
from fuseprompt.tasks.name import name
from fuseprompt.tasks.settings import NameSettings

try:
    from bertopic.representation import BaseRepresentation
except ImportError:  # Without it nothing can call us.
    BaseRepresentation = object

#: What BERTopic has of a topic: words with weights.
Topics = Mapping[int, list[tuple[str, float]]]


class FuseLabels(BaseRepresentation):  # type: ignore[misc, unused-ignore]
    """A representation model of BERTopic; alone, in a list, or as one of several aspects.

    Args:
        settings: Settings of the labels.
        objective: From `fuseprompt.tasks.name.objective_of`, whose models are kept.
    """

    def __init__(
        self, settings: NameSettings | None = None, objective: Objective | None = None
    ) -> None:
        self.settings = settings
        self.objective = objective

    def extract_topics(
        self, topic_model: Any, documents: Any, c_tf_idf: Any, topics: Topics
    ) -> dict[int, list[tuple[str, float]]]:
        """Return the label of each topic with weight 1; a topic that gets none keeps its words."""
        found = {int(topic): list(words) for topic, words in topics.items()}
        named = {str(topic): topic for topic in found if topic != -1}
        groups: dict[str, list[str]] = {key: [] for key in named}
        for document, topic in zip(documents["Document"], documents["Topic"], strict=True):
            if (key := str(topic)) in groups:
                groups[key].append(document)
        if len(groups) < 2:
            return found
        for one in name(groups, self.settings, objective=self.objective):
            if not isinstance(one, Failure) and one.rank == 1:
                found[named[one.group]] = [(one.label, 1.0)]
        return found
