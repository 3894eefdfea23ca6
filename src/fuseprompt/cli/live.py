"""The jobs of a page, and what it shows of them while they run."""

import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, final

from fuseprompt.cli import caption, dream, elicit, name, rewrite
from fuseprompt.cli.job import Shown
from fuseprompt.errors import FuseError, FuseWarning, UsageError
from fuseprompt.tasks.settings import (
    CaptionSettings,
    DreamSettings,
    ElicitSettings,
    ModelIds,
    NameSettings,
    RewriteSettings,
)

if TYPE_CHECKING:
    from fuseprompt.search.minimize import Progress

#: A job of a page: it takes `on_step` and `on_progress`, and yields one item after another.
Job = Callable[..., Iterator[Shown]]

#: What compares texts; the models of captions have no such one.
ENCODER: Final = "offline:sentence"

#: Two searches at once would share what models keep, and take twice as long each.
_ONE_AT_A_TIME: Final = threading.Lock()

#: Where gradio keeps an upload.
_UPLOADS: Final = re.compile(r"(?<![\w/])/(?:[\w.-]+/)*[0-9a-f]{64}/")


@final
class View:
    """What the page shows of a job while it runs and at its end."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._ids: tuple[str, ...] = ()
        self._texts: tuple[str, ...] = ()
        self._losses: dict[str, list[list[float]]] = {}  # By term and item, after each step.
        self._cards: list[str] = []
        self.status, self.notes = "waiting for its turn", list[str]()

    def on_step(self, step: "Progress") -> None:
        """Show a step of a search; the losses of its texts are computed for that."""
        if step.ids != self._ids:  # Another group of items: its curves begin anew.
            self._losses = {}
        self._ids, self._texts = step.ids, step.texts
        for item, one in enumerate(step.evaluations):
            for term, value in {"loss": one.loss, **one.terms}.items():
                lines = self._losses.setdefault(term, [[] for _ in step.ids])
                lines[item].append(value)
        self.status = f"step {step.step} of {step.steps}"

    def add(self, one: Shown) -> None:
        """Show a result in the place of the texts so far."""
        self._texts = ()
        self._cards.append(one.card)
        self.notes += [one.note] if one.note and "error" not in one.record else []

    def fail(self, status: str, reason: str) -> None:
        """Show why there is no result."""
        self.status = status
        self.add(Shown({}, card=f"<p class=error>{escape(reason)}</p>"))

    def render(self) -> str:
        """Return the HTML."""
        from fuseprompt.evaluation.page import render_page

        seconds = int(time.monotonic() - self._started)
        html = render_page(
            "app.html",
            status=f"{self.status}, {seconds} s" if seconds else self.status,
            cards=self._cards,
            texts=self._texts,
            notes=self.notes,
            losses=self._losses,
        )
        # Where an upload lies is nobody's business.
        html = _UPLOADS.sub("", html)
        # gradio takes HTML for a template; what stands in a text is none.
        return html.replace("{{", "&#123;&#123;").replace("${", "&#36;{")


class _StoppedError(Exception):
    """A job was stopped before its search began."""


def watch(job: Job, stop: threading.Event) -> Iterator[str]:
    """Yield what there is to see of a job, which runs in a thread of its own, until it ends.

    `stop` ends its search, whose best texts are the results. So does whoever closes the iterator.
    """
    seen: SimpleQueue[str | None] = SimpleQueue()
    threading.Thread(target=_run, args=(job, stop, seen.put), daemon=True).start()
    try:
        yield from iter(seen.get, None)
    finally:
        stop.set()


def _run(job: Job, stop: threading.Event, put: Callable[[str | None], None]) -> None:
    view = View()
    num_begun = sys.maxsize  # Of items, when the search was stopped.

    def on_step(step: "Progress") -> bool:
        nonlocal num_begun
        view.on_step(step)
        put(view.render())
        if stop.is_set():
            num_begun = 1 + max(int(one.partition(":")[0]) for one in step.ids)
        return stop.is_set()

    def on_progress(what: str, done: int, total: int) -> None:
        view.status = f"{what}, {done:,} of {total:,}" if total else what
        put(view.render())
        if stop.is_set():
            raise _StoppedError

    try:
        with _ONE_AT_A_TIME, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FuseWarning)
            on_progress("loading models", 0, 0)
            num_done = 0
            for one in job(on_step=on_step, on_progress=on_progress):
                view.add(one)
                put(view.render())
                num_done += one.last
                if num_done >= num_begun:
                    break
        view.status = "stopped: the best so far" if num_begun < sys.maxsize else "done"
        view.notes += [str(w.message) for w in caught if issubclass(w.category, FuseWarning)]
    except _StoppedError:
        view.status = "stopped before there was a text"
    except FuseError as error:
        view.fail("no result", str(error))
    except Exception as error:
        traceback.print_exc()
        view.fail("failed; the terminal says more", f"{type(error).__name__}: {error}")
    finally:
        put(view.render())
        put(None)


@final
class Jobs:
    """The jobs of a page; models are loaded once, when they are first needed."""

    def __init__(self, ids: ModelIds, device: str, dtype: str) -> None:
        self.ids = ids
        self._options: Any = {"device": device, "dtype": dtype}
        self._loaded: dict[str, Any] = {}
        self._objectives: dict[str, tuple[str, Any]] = {}

    def _load(self, model_id: str, **options: Any) -> Any:
        from fuseprompt.models.hub import load, silence_libraries

        silence_libraries()
        if model_id not in self._loaded:
            self._loaded[model_id] = load(model_id, **options)
        return self._loaded[model_id]

    def _objective(self, task: Any, settings: Any, *args: Any, **options: Any) -> Any:
        """Return the objective of settings; the last one of each task is kept, with its tables."""
        kept = self._objectives.get(task.__name__)
        if kept is None or kept[0] != repr(settings):
            kept = (repr(settings), task.objective_of(settings, *args, **options))
            self._objectives[task.__name__] = kept
        return kept[1]

    def caption(
        self, photo: str | None, sentiment: str, count: int, **calls: Any
    ) -> Iterator[Shown]:
        """Caption a photo."""
        from fuseprompt.tasks import caption as task
        from fuseprompt.tasks.models import load_models

        _open(photo)  # A bad file is known before models are loaded.
        label = None if sentiment == "any" else sentiment
        settings = CaptionSettings(sentiment=label, num_captions=count)
        options = {"with_sentiment": label is not None, "load": self._load, **self._options}
        objective = self._objective(task, settings, load_models(self.ids, **options))
        yield from caption.show(task.caption(str(photo), settings, objective=objective, **calls))

    def rewrite(self, texts: str, label: str, keep: float, **calls: Any) -> Iterator[Shown]:
        """Rewrite the lines of a text."""
        from fuseprompt.tasks import rewrite as task

        settings = RewriteSettings(
            label=label.strip(),
            keep=keep,
            lm=self.ids.lm,
            classifier=self.ids.sentiment,
            encoder=ENCODER,
            **self._options,
        )
        objective = self._objective(task, settings, load=self._load)
        results = task.rewrite(_lines(texts) or [""], settings, objective=objective, **calls)
        yield from rewrite.show(results, label)

    def name(
        self, texts: str, words: int, file: str | None, column: str, group: str, **calls: Any
    ) -> Iterator[Shown]:
        """Name the groups of a file, or else blocks of lines."""
        from fuseprompt.tasks import name as task
        from fuseprompt.tasks.groups import Groups, read_groups

        blocks = re.split(r"\n\s*\n", texts.strip())
        groups = Groups({f"{i}": _lines(block) for i, block in enumerate(blocks, start=1)})
        if file is not None:
            groups = read_groups(file, column=column, group=group)
        if groups.note:
            warnings.warn(groups.note, FuseWarning, stacklevel=2)
        settings = NameSettings(words=words, lm=self.ids.lm, encoder=ENCODER, **self._options)
        objective = self._objective(task, settings, load=self._load)
        yield from name.show(task.name(groups.members, settings, objective=objective, **calls))

    def elicit(self, contexts: str, followings: str, tokens: int, **calls: Any) -> Iterator[Shown]:
        """Find a text for contexts and what should follow in each, line by line."""
        from fuseprompt.tasks import elicit as task

        wanted = [f" {line}" for line in _lines(followings)]
        around = _lines(contexts) or ["{}"]
        if len(wanted) != len(around):
            raise UsageError(
                f"Expected what should follow in each context, got {len(wanted)} for "
                f"{len(around)}. Write both line by line, in the same order."
            )
        settings = ElicitSettings(models=(self.ids.lm,), max_tokens=tokens, **self._options)
        objective = self._objective(task, settings, load=self._load)
        items = [[*zip(around, wanted, strict=True)]]
        results = task.elicit(items, settings, objective=objective, on_step=calls["on_step"])
        yield from elicit.show(results)

    def dream(self, model: str, layer: str, unit: int, **calls: Any) -> Iterator[Shown]:
        """Write a text that drives a unit."""
        from fuseprompt.tasks import dream as task

        settings = DreamSettings(model=model, layer=layer, lm=self.ids.lm, **self._options)
        objective = self._objective(task, settings, [unit], load=self._load)
        results = task.dream([unit], settings, objective=objective, on_step=calls["on_step"])
        yield from dream.show(results, settings)

    def explain(
        self, photo: str | None, step: int, proposals: Sequence[str], **calls: Any
    ) -> Iterator[Shown]:
        """Explain a step of a photo's caption."""
        from fuseprompt.evaluation.explain import explain, render
        from fuseprompt.tasks.models import load_models, proposal_named

        picture, note = _open(photo), calls["on_progress"]
        found = explain(
            picture,
            [proposal_named(each, note) for each in proposals],
            load_models(self.ids, load=self._load, **self._options),
            step=step,
            log=lambda what: note(what, 0, 0),
        )
        page = escape(render(found, picture, name=Path(str(photo)).name))
        yield Shown({}, card=f'<iframe title="One step" srcdoc="{page}"></iframe>')


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _open(photo: str | None) -> Any:
    from fuseprompt.models.images import open_image

    if photo is None:
        raise UsageError("Which photo? Drop one, or click an example.")
    return open_image(photo)
