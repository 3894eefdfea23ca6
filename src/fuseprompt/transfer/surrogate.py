"""What exact losses of a few words say of all others: a Gaussian process over words.

A transfer predicts the loss of every word before any is evaluated. Where the exact losses of a
first round differ from the prediction, words of like meaning differ likewise: the difference is
modelled as a Gaussian process (Rasmussen & Williams, 2006, chapter 2) over the vectors of a
context-free word table, with the prediction as its mean. Its cost is matrix products, no forward
pass. This file asks for no losses; who does is `fuseprompt.search.surrogate`, to be read next.
"""

from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: Words of a slot that are worth correcting between rounds, the best-predicted.
CONSIDERED: Final = 4096

#: Keeps a Cholesky factor from failing where two words have one vector.
_JITTER: Final = 1e-4


@final
@dataclass(frozen=True)
class Surrogate:
    """Settings of the process; the defaults were chosen on contexts that no benchmark uses.

    Attributes:
        length_scale: Of the kernel exp((cosine - 1) / length_scale).
        noise: Variance of what the vectors do not explain, in units of the kernel's.
        slope: Variance of the slope of the losses on the prediction, in the same units: the
            prediction may rank well and still be on the wrong scale.
    """

    length_scale: float = 1.2
    noise: float = 0.03
    slope: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: If a scale or the noise is not positive, or the slope negative.
        """
        if self.length_scale <= 0 or self.noise <= 0 or self.slope < 0:
            raise ValueError(
                "A surrogate needs length_scale > 0, noise > 0 and slope >= 0, got "
                f"{self.length_scale}, {self.noise} and {self.slope}."
            )

    def correct(
        self,
        predicted: Float[Tensor, " w"],
        vectors: Float[Tensor, "w o"],
        asked: Int[Tensor, " k"],
        losses: Float[Tensor, " k"],
    ) -> Float[Tensor, " w"]:
        """Return predictions corrected by exact losses.

        Args:
            predicted: Loss of every word as a transfer predicts it, shape (w,).
            vectors: Unit vectors of the words, as `word_directions` returns them, shape (w, o).
            asked: Words whose exact loss is known, shape (k,).
            losses: Their exact losses, shape (k,).

        Returns:
            Posterior means, shape (w,); `predicted` itself if nothing was asked.
        """
        if not len(asked):
            return predicted
        spread = predicted.std(correction=0).clamp_min(1e-12)
        standing = (predicted - predicted.mean()) / spread
        residual = (losses - predicted[asked]).double()
        offset = residual.mean()
        near = vectors[asked]
        known = self._covariance(near, near, standing[asked], standing[asked]).double()
        known.diagonal().add_(self.noise + _JITTER)
        weights = torch.cholesky_solve(
            (residual - offset)[:, None], torch.linalg.cholesky(known)
        ).float()
        across = self._covariance(vectors, near, standing, standing[asked])
        corrected: Tensor = predicted + offset.float() + (across @ weights).squeeze(1)
        return corrected

    def _covariance(
        self,
        left: Float[Tensor, "a o"],
        right: Float[Tensor, "b o"],
        left_standing: Float[Tensor, " a"],
        right_standing: Float[Tensor, " b"],
    ) -> Float[Tensor, "a b"]:
        alike = torch.exp((left @ right.T - 1.0) / self.length_scale)
        return alike + self.slope * left_standing[:, None] * right_standing[None]


def word_directions(vectors: Float[Tensor, "w o"]) -> Float[Tensor, "w o"]:
    """Return the unit vectors of words seen from their mean, shape (w, o).

    All words of a table share a frame; seen from the mean, cosines tell them apart.
    """
    return torch.nn.functional.normalize(vectors - vectors.mean(0), dim=1)
