"""A term of your own: a tutorial in cells.

An objective is a sum of terms, and a term is one small class: a name, a weight, a model, how to
read a target, and how to compare. This page adds one, "say something else": it keeps a text *away*
from a given text in meaning, and costs nothing once the two are far enough apart. Run it from the
root of the repository (`python docs/tutorial_custom_term.py`), or cell by cell in an editor that
knows `# %%`.
"""

# %%
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fuseprompt import AutoDAN, Fluency, ImageText, Objective, Problem, load, minimize
from fuseprompt.errors import ProblemError
from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.objective import Term
from fuseprompt.proposals import Gradient

# %% [markdown]
# ## The class
#
# `encode_target` turns what a user writes into a vector, once for each problem. `compare` gets what
# the model makes of many texts, one row each, with the targets in the same order, and returns one
# loss each. It must be differentiable in `outputs`: the search's gradients come through it. Tokens,
# batches and the writer's vocabulary are not a term's business.
#
# Say the unit and the range in the docstring, and raise a `ProblemError` that says what to do for a
# target that cannot be read.


# %%
@dataclass(frozen=True)
class Elsewhere:
    """How much closer to the target than `margin` a text is: a cosine, range [0, 2], no unit."""

    model: SentenceEncoder
    weight: float = 1.0
    name: str = "elsewhere"
    target: str = "avoid"
    margin: float = 0.2

    def encode_target(self, target: Any) -> Float[Tensor, " t"]:
        """Return the normalised vector of the text to stay away from."""
        if not str(target).strip():
            raise ProblemError(f"Term {self.name!r}: got an empty text. Write what to avoid.")
        return self.model.encode([str(target)])[0].cpu()

    def compare(
        self, outputs: Float[Tensor, "b o"], targets: Float[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return the part of each cosine above the margin."""
        return torch.relu((outputs * targets).sum(dim=-1) - self.margin)


# %% [markdown]
# ## Does it fit?
#
# The protocol is checked by name, and a loss can be asked for without a search.

# %%
lm, encoder = load("offline:lm"), load("offline:sentence")
assert isinstance(Elsewhere(encoder), Term)

bound = Objective([Fluency(lm), Elsewhere(encoder)]).bind(
    [Problem("try", {"avoid": "A cat sleeps on the sofa."})]
)
for text in ("A kitten sleeps on a couch.", "The train to Prague was late."):
    (evaluation,) = bound.evaluate([text], [0])
    print(f"{evaluation.terms['elsewhere']:.2f}  {text}")

# %% [markdown]
# ## In a search
#
# Next to other terms it needs no more than its target: here a caption of the cat photo that must
# not be about cats. A weight says how many units of it are worth one of another term. Proposing by
# the gradient spares the word table, which takes a minute to make for a model that has none yet.

# %%
objective = Objective(
    [
        Fluency(lm),
        ImageText(load("offline:image-text"), weight=12.0),
        Elsewhere(encoder, weight=24.0),
    ]
)
method = AutoDAN(steps=6, proposal=Gradient(), beam_width=3, search_width=16)
for avoid in ("economy", "a cat"):
    (result,) = minimize(
        objective, method, image="examples/photos/cat.jpg", avoid=avoid, prefix="An image of"
    )
    losses = ", ".join(f"{name} {loss:.2f}" for name, loss in result.terms.items())
    print(f"{result.text}  ({losses})")
