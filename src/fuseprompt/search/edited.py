"""The state of methods that edit whole texts: for each problem a current text and the best ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from fuseprompt.objective.objective import BoundObjective, Evaluation, derive_seed
from fuseprompt.proposals.base import Proposal
from fuseprompt.search.beginnings import begin_whole
from fuseprompt.search.checkpoint import REBUILT
from fuseprompt.search.edits import Editor, first_of_each
from fuseprompt.search.hypotheses import TIE, order_by_loss
from fuseprompt.search.method import Found, HistoryEntry
from fuseprompt.search.places import Candidates
from fuseprompt.text.token_classes import SENTENCE_ENDS


@final
@dataclass(frozen=True)
class Edited:
    """A whole text with its exact losses."""

    text: str
    exact: Evaluation

    def is_better(self, other: "Edited") -> bool:
        """Return whether it meets more of what is asked for, or as much at a lower loss."""
        if self.exact.violation != other.exact.violation:
            return self.exact.violation < other.exact.violation
        return self.exact.loss < other.exact.loss - TIE


@final
@dataclass(frozen=True)
class EditedProblem:
    """What a search knows of one problem."""

    begun: Edited  # the text before the first step
    current: Edited  # the text that is edited next
    best: tuple[Edited, ...]  # best first
    history: tuple[HistoryEntry, ...] = ()
    waited: int = 0  # steps since the last better text
    restarts: int = 0
    scored: tuple[Edited, ...] = ()  # edits of the current text that are not better
    visited: tuple[str, ...] = ()  # texts that were current


@final
@dataclass(frozen=True, eq=False)
class EditState:
    """The state of a search by edits."""

    editor: Editor = field(metadata=REBUILT)
    problems: tuple[EditedProblem, ...]
    num_steps: int = 0

    @classmethod
    def start(
        cls,
        bound: BoundObjective,
        proposal: Proposal,
        num_tokens: int,
        *,
        only_words: bool = False,
    ) -> "EditState":
        """Return the state before the first step: starts, or random texts of so many tokens."""
        texts = begin_whole(bound, num_tokens)
        editor = Editor.start(bound, proposal, only_words=only_words)
        exact = editor.read(texts, range(len(texts))).evaluate()
        begun = [Edited(text, losses) for text, losses in zip(texts, exact, strict=True)]
        problems = tuple(EditedProblem(one, one, (one,), visited=(one.text,)) for one in begun)
        return cls(editor, problems)

    @property
    def fast_path(self) -> float:
        """Share of candidates whose secondary ids came from a table: edits are encoded whole."""
        return 0.0

    def seeds(self, problems: Sequence[int]) -> list[int]:
        """Return a seed for what this step draws for each problem."""
        own = self.editor.bound.seeds
        return [derive_seed(own[p], "step", str(self.num_steps)) for p in problems]

    def after(
        self,
        active: Sequence[int],
        scored: Sequence[tuple[int, str, Evaluation]],
        move: Callable[[EditedProblem, list[Edited]], EditedProblem],
        num_kept: int,
    ) -> "EditState":
        """Return the state after a step that scored edits of the active problems' texts."""
        # `scored` has the row of a text in `active`; `move` says what is edited next.
        problems = list(self.problems)
        for row, number in enumerate(active):
            fresh = self._in_order([Edited(t, exact) for r, t, exact in scored if r == row])
            problem = problems[number]
            best = {one.text: one for one in (*problem.best, *fresh)}
            kept = tuple(self._in_order(list(best.values()))[:num_kept])
            entry = HistoryEntry(
                self.num_steps + 1, kept[0].text, kept[0].exact.loss, None, len(fresh)
            )
            waited = 0 if kept[0].is_better(problem.best[0]) else problem.waited + 1
            problem = replace(problem, best=kept, waited=waited, history=(*problem.history, entry))
            problems[number] = move(problem, fresh)
        return replace(self, problems=tuple(problems), num_steps=self.num_steps + 1)

    def _in_order(self, edited: list[Edited]) -> list[Edited]:
        losses, texts = [e.exact.loss for e in edited], [e.text for e in edited]
        tokenizer = self.editor.bound.objective.primary.tokenizer
        violations = [e.exact.violation for e in edited]
        return [edited[i] for i in order_by_loss(losses, texts, tokenizer, violations)]

    def found(self) -> list[Found]:
        """Return the best texts of each problem; no result is worse than what it began with."""
        result = []
        for problem, (_, after) in zip(self.problems, self.editor.bound.around, strict=True):
            # Finished texts win by a margin, which must not make a result worse than the start.
            begun, best = problem.begun, problem.best
            ends = ("",) if after else SENTENCE_ENDS  # A template that goes on ends any text.
            if not begun.text.endswith(ends):
                best = tuple(one for one in best if not begun.is_better(one))
            ended = tuple(one.text for one in best if one.text.endswith(ends))
            active = tuple(one.text for one in best if one.text not in ended)
            result.append(Found(ended, active, problem.history))
        return result


def limit(candidates: Candidates, count: int) -> Candidates:
    """Return the `count` candidates of each text that are expected to be best."""
    order = candidates.predicted.argsort(stable=True).tolist()
    return candidates[first_of_each(candidates.rows.tolist(), order, count)]
