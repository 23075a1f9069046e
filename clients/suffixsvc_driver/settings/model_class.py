"""Classes of target models by their useful draft length, and the range of draft lengths of each."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class ModelClass(enum.StrEnum):
    """Class of a model by its bottleneck: reading all weights, or those of the experts of each token."""

    DENSE_LARGE = "dense-large"
    DENSE_SMALL = "dense-small"
    MOE = "moe"


#: useful draft lengths, (smallest, largest): large dense models gain up to the largest length tried; mixtures
#: of experts are best at 8, because each further token reads further experts
CLASS_RANGES: Final[Mapping[ModelClass, tuple[int, int]]] = {
    ModelClass.DENSE_LARGE: (4, 48),
    ModelClass.DENSE_SMALL: (4, 16),
    ModelClass.MOE: (4, 8),
}
#: number of weights from which on a dense model is large: models of 32B and 70B gained from long drafts,
#: those below 32B did not, and nothing between was tried
_LARGE: Final = 32_000_000_000


def model_class(parameters: int, experts: int) -> ModelClass:
    """Return the class of a model by its number of weights and of experts (0 for a dense model)."""
    if experts:
        return ModelClass.MOE
    return ModelClass.DENSE_LARGE if parameters >= _LARGE else ModelClass.DENSE_SMALL
