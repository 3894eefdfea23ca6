"""`fuseprompt app`: a page with a tab for each job; this file is a Space, too (examples/space)."""

import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from fuseprompt.cli.live import ENCODER, Job, Jobs, View, watch
from fuseprompt.cli.options import Output
from fuseprompt.errors import FuseError, UsageError
from fuseprompt.tasks.kinds import PositiveInt
from fuseprompt.tasks.settings import ModelSettings, model_ids


@dataclass(frozen=True)
class Options:
    """Open a page with a tab for each job, for a browser on this machine.

    Attributes:
        port: Port of the page (default: the first free one from 7860 on).
        prepare: Make the offline models first if need be.
    """

    models: ModelSettings
    output: Output
    port: PositiveInt | None = None
    prepare: bool = False


def run(options: Options) -> int:
    """Serve the page until Ctrl-C; return 0."""
    output, models = options.output, options.models
    page = make_page(Jobs(model_ids(models.models), models.device, models.dtype))
    if options.prepare:
        from fuseprompt.cli.prepare import prepare

        prepare(quiet=output.quiet or output.json)
    url = serve(page, options.port)
    print(json.dumps({"url": url}) if output.json else f"Open {url} (Ctrl-C ends it).", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        page.close(verbose=False)
    return 0


def _photos() -> list[list[str]]:
    """Return the example photos, of the package or of a checkout around it."""
    package = Path(str(resources.files("fuseprompt")))
    folders = (package / "data" / "photos", package.parents[1] / "examples" / "photos")
    return [[str(file)] for folder in folders for file in sorted(folder.glob("*.jpg"))]


def make_page(jobs: Jobs) -> Any:
    """Return the page, a `gradio.Blocks`."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    try:
        import gradio as gr
    except ImportError:
        raise FuseError(
            "The app needs gradio, which is not installed: pip install 'fuseprompt[app]'."
        ) from None

    photos = _photos()
    stops: defaultdict[tuple[str | None, str], threading.Event] = defaultdict(threading.Event)

    def leave(request: gr.Request) -> None:
        for key in [key for key in stops if key[0] == request.session_hash]:
            stops.pop(key).set()

    def tab(title: str, job: Job, make_inputs: Callable[[], Any], examples: Any) -> None:
        def begin(request: gr.Request) -> Any:
            stops[request.session_hash, title] = threading.Event()
            stopping = gr.Button("Stop", interactive=True, visible=True)
            return gr.Button(interactive=False), stopping, View().render()

        def stream(request: gr.Request, *values: Any) -> Iterator[str]:
            yield from watch(partial(job, *values), stops[request.session_hash, title])

        def halt(request: gr.Request) -> Any:
            stops[request.session_hash, title].set()
            return gr.Button("Stopping", interactive=False)

        def end() -> Any:
            return gr.Button(interactive=True), gr.Button(visible=False)

        with gr.Tab(title), gr.Row():
            with gr.Column(scale=2, min_width=300):
                gr.Markdown(_ABOUT[title])
                inputs = make_inputs()
                start = gr.Button(title, variant="primary")
                short = [
                    shorten(" ".join(map(str, each)), 50, placeholder=" ...") for each in examples
                ]
                labels = None if examples is photos else short
                shown = gr.Examples(examples, inputs[: len(examples[0])], example_labels=labels)
            with gr.Column(scale=3, min_width=300, elem_id=f"found-{title}"):
                stop = gr.Button("Stop", visible=False)
                output = gr.HTML(elem_classes=title.lower(), apply_default_css=False)
        now: Any = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        later = now | {"queue": True, "show_progress": "minimal", "concurrency_id": "search"}
        stop.click(halt, None, stop, **now)
        for listen in (start.click, shown.load_input_event.then):
            begun = listen(begin, None, [start, stop, output], js=_SCROLL % f"found-{title}", **now)
            begun.then(stream, inputs, output, **later).then(end, None, [start, stop], **now)

    def photo() -> Any:
        image = gr.Image(
            type="filepath", sources=["upload", "clipboard"], label="Photo", height=260
        )
        # The job opens the file, since it has messages for a bad one.
        image.preprocess = lambda given: given and given.path
        return image

    def caption_inputs() -> list[Any]:
        return [
            photo(),
            gr.Radio(["any", "positive", "negative"], value="any", label="Sentiment"),
            gr.Slider(1, 5, 1, step=1, label="Captions"),
        ]

    def rewrite_inputs() -> list[Any]:
        labels = ["positive", "negative", "neutral"]
        return [
            gr.Textbox(label="Texts, one a line", lines=3),
            gr.Dropdown(labels, label="Label", allow_custom_value=True),
            gr.Slider(0, 1, 0.75, step=0.05, label="Least similarity to the original"),
        ]

    def name_inputs() -> list[Any]:
        texts = gr.Textbox(label="Groups of lines, an empty line between two", lines=9)
        words = gr.Slider(1, 10, 6, step=1, label="Most words")
        with gr.Accordion("A file instead", open=False):
            file = gr.File(label="CSV, TSV, JSONL or safetensors", height=140)
            columns = [gr.Textbox(each, label=f"Column of {each}s") for each in ("text", "group")]
        return [texts, words, file, *columns]

    def elicit_inputs() -> list[Any]:
        return [
            gr.Textbox(label="Contexts, one a line", lines=2),
            gr.Textbox(label="What should follow in each", lines=2),
            gr.Slider(2, 24, 12, step=1, label="Most tokens"),
        ]

    def dream_inputs() -> list[Any]:
        models = [*dict.fromkeys((ENCODER, jobs.ids.sentiment, jobs.ids.lm))]
        return [
            gr.Dropdown(models, value=models[0], label="Model"),
            gr.Textbox("4", label="Layer: number of a block, or name of a module"),
            gr.Number(17, label="Unit", precision=0, minimum=0),
        ]

    def explain_inputs() -> list[Any]:
        return [
            photo(),
            gr.Slider(1, 6, 2, step=1, label="Step"),
            gr.CheckboxGroup(_PROPOSALS, value=_PROPOSALS[:3], label="Proposals"),
        ]

    a_day = 24 * 60 * 60  # After it, and when the program ends, uploads are deleted.
    with gr.Blocks(
        title="fuseprompt", analytics_enabled=False, delete_cache=(a_day, a_day)
    ) as page:
        gr.Markdown(_ABOUT["page"])
        tab("Caption", jobs.caption, caption_inputs, photos)
        tab("Rewrite", jobs.rewrite, rewrite_inputs, _REWRITES)
        tab("Name", jobs.name, name_inputs, [[_MESSAGES]])
        tab("Elicit", jobs.elicit, elicit_inputs, _CONTEXTS)
        tab("Dream", jobs.dream, dream_inputs, [[ENCODER, "4", 17], [ENCODER, "2", 100]])
        tab("Explain", jobs.explain, explain_inputs, photos)
        page.unload(leave)
    return page


def serve(page: Any, port: int | None) -> str:
    """Serve a page in the background, at a free port by default; return its address."""
    import gradio as gr

    from fuseprompt.evaluation.page import render_page

    font, mono = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]
    options: Any = {"run_history": False, "footer_links": [], "quiet": True, "share": False}
    try:
        page.queue(api_open=False).launch(
            server_port=port,
            prevent_thread_lock=True,
            ssr_mode=False,
            max_file_size="50mb",
            theme=gr.themes.Default(font=font, font_mono=mono),
            head=f"<style>{render_page('app.css')}</style>",
            **options,
        )
    except OSError:  # gradio's own, without a number.
        where = port or "7860 and the next hundred"
        raise UsageError(f"--port {where}: taken by other programs. Give another.") from None
    return str(page.local_url)


_ABOUT: Final = {
    "page": "# fuseprompt\nOne text, optimised against several models at once. Results stream in; "
    "**Stop** keeps the best so far. Searches run one after another.",
    "Caption": "A sentence that a language model finds fluent and an image-text model true.",
    "Rewrite": "The same text with another label, by as few changed words as possible.",
    "Name": "A short label for each group of texts that fits it and no other.",
    "Elicit": "A text after which the language model goes on as wanted. It takes the place of {}.",
    "Dream": "Fluent text that drives a hidden unit of a model.",
    "Explain": "One step of a caption: what each proposal names, and which tokens are best.",
}

#: On a phone what is found stands below all inputs.
_SCROLL: Final = """() => {
  const found = document.getElementById("%s"), top = found.getBoundingClientRect().top;
  if (top > innerHeight / 2) found.scrollIntoView({behavior: "smooth"});
}"""

_PROPOSALS: Final = ["none", "word-table", "additive", "gradient", "fuse"]
_REWRITES: Final = [
    ["The hotel room was dirty and loud.", "positive"],
    ["I love this phone.", "negative"],
]
_CONTEXTS: Final = [
    ["{} The capital of France is", "Paris"],
    ["{} Its colour is\n{} It tastes", "red\nsweet"],
]
_MESSAGES: Final = """\
I cannot log in to my account.
The password reset link does not work.
It says my user name is unknown.
I was locked out after three tries.

My parcel has not arrived.
The courier left the package with a neighbour.
Delivery took two weeks.
The tracking number shows nothing.

I would like my money back.
The refund was never paid.
You charged my card twice.
Why was I billed after I cancelled?"""


if __name__ == "__main__":
    run(Options(ModelSettings(), Output(), prepare=True))
