"""Calibration of each layer's probabilities, learned online from the tokens the target writes.

A layer gives every drafted token a raw probability of acceptance. The tokens that the target writes label
these probabilities, whether the draft was sent or not. The tables of the native core correct them, so that a
poisoned cache is demoted after a few tokens and an accurate one is not starved
(``csrc/driver/acceptance_table.h``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffixsvc_driver.policy.layer_value import LayerValue

if TYPE_CHECKING:
    from suffixsvc.core import AcceptanceTable


class Calibrator:
    """Calibration tables and query statistics of the layers of one pipeline, by layer name.

    Not thread-safe. Generations of the same agent should share one.
    """

    def __init__(self) -> None:
        self._tables: dict[str, AcceptanceTable] = {}
        self._layer_values: dict[str, LayerValue] = {}

    def layer_value(self, layer: str, prior_seconds: float) -> LayerValue:
        """Cost and expected gain of queries to ``layer``; ``prior_seconds`` counts in the first call only."""
        return self._layer_values.setdefault(layer, LayerValue(prior_seconds))

    def table(self, layer: str) -> AcceptanceTable:
        """The table of ``layer``, a new one without labels if there is none."""
        found = self._tables.get(layer)
        if found is None:
            from suffixsvc.core import AcceptanceTable  # noqa: PLC0415 - adapters import the driver without the core

            found = self._tables[layer] = AcceptanceTable()
        return found
