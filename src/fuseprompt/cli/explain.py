"""`fuseprompt explain`: a page that shows one step of a caption, and what each proposal names."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fuseprompt.cache import write_atomically
from fuseprompt.cli.bar import Bar
from fuseprompt.cli.options import Output
from fuseprompt.errors import FuseError, UsageError
from fuseprompt.tasks.kinds import File, PositiveInt, Text
from fuseprompt.tasks.settings import (
    PREFIX,
    CaptionSettings,
    ModelSettings,
    ProposalName,
    model_ids,
)


@dataclass(frozen=True)
class Options:
    """Show one step of a photo's caption: what each proposal names, and what is true.

    Attributes:
        image: The photo.
        out: The HTML page to write.
        step: Step of the search; 2 by default.
        text: Explain this unfinished text instead of a step.
        proposal: Proposal to compare; may repeat.
        prefix: Text that every caption begins with.
        search_width: Candidates of each proposal.
        likeliest: The language model's likeliest tokens that are scored too.
    """

    image: str = field(metadata={"argument": "IMAGE"})
    out: File
    models: ModelSettings
    output: Output
    step: PositiveInt | None = None
    text: Text | None = None
    proposal: tuple[ProposalName, ...] = ("none", "word-table", "additive", "gradient", "fuse")
    prefix: Text = PREFIX
    search_width: PositiveInt = 64
    likeliest: PositiveInt = 2000


def run(options: Options) -> int:
    """Explain one step of a photo's caption and write the page; return 0."""
    if options.text is not None and options.step is not None:
        raise UsageError("--text and --step: give one of them, the text or the step to reach.")
    from fuseprompt.evaluation.explain import explain, render
    from fuseprompt.models.hub import silence_libraries
    from fuseprompt.models.images import open_image
    from fuseprompt.tasks.models import load_models, proposal_named

    photo = open_image(options.image)
    out, output = options.out, options.output
    if out.is_dir() or not out.parent.is_dir():
        raise FuseError(
            f"--out {out}: expected a file name in a folder that exists, such as step.html."
        )
    silence_libraries()
    with Bar(quiet=output.quiet or output.json) as bar:
        bar.note("loading models ...")
        models = load_models(
            model_ids(options.models.models),
            device=options.models.device,
            dtype=options.models.dtype,
        )
        found = explain(
            photo,
            [proposal_named(name, bar.make) for name in options.proposal],
            models,
            text=options.text,
            step=options.step or 2,
            search_width=options.search_width,
            num_likeliest=options.likeliest,
            caption=CaptionSettings(prefix=options.prefix),
            log=lambda what: bar.note(f"{what} ..."),
        )
    try:
        write_atomically(out, render(found, photo, name=Path(options.image).name))
    except OSError as error:
        raise FuseError(f"--out {out}: cannot be written ({error.strerror}).") from None
    if output.json:
        print(json.dumps({"image": options.image, "out": str(out), **asdict(found)}))
    elif not output.quiet:
        print(f"{out}: {found.text!r}, {len(found.tokens):,} tokens scored")
        for view in found.views:
            of = f"{view.found} of {len(found.best)} best tokens among its {len(view.proposals)}"
            print(f"  {view.name:13} rank correlation {view.rho:5.2f}   {of}")
    return 0
