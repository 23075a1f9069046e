"""Classes of models that are drafted for differently far, and the K that were tried with each."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

__all__ = ["K_TRIED", "ModelClass", "model_class"]


class ModelClass(enum.StrEnum):
    """By what limits them: reading weights, or routing each token to experts of its own."""

    DENSE_LARGE = "dense-large"
    DENSE_SMALL = "dense-small"
    MOE = "moe"


#: numbers of drafted tokens worth trying: large models gain up to the last, mixtures of experts are best
#: at 8, because each further token brings further experts to read
K_TRIED: Final[Mapping[ModelClass, tuple[int, ...]]] = {
    ModelClass.DENSE_LARGE: (4, 8, 16, 24, 32, 48),
    ModelClass.DENSE_SMALL: (4, 8, 16),
    ModelClass.MOE: (4, 8),
}
#: weights from which a dense model counts as large
_LARGE: Final = 32_000_000_000


def model_class(parameters: int, experts: int) -> ModelClass:
    """Of a model with so many weights and experts (0 = dense)."""
    if experts:
        return ModelClass.MOE
    return ModelClass.DENSE_LARGE if parameters >= _LARGE else ModelClass.DENSE_SMALL
