"""Draft-length controllers of the first-match policy: fixed, by acceptance, by kind of text, by model class.

They serve as baselines for expected gain (``suffixsvc bench decode``) and for users who know their K.
Ranges and thresholds were found on a 96-core machine with models of 0.5B to 480B; docs/driver.md has
results of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

from suffixsvc_driver.settings.driver_config import Controller, DriverConfig
from suffixsvc_driver.settings.model_class import K_TRIED
from suffixsvc_driver.settings.text_kind import ContentType

__all__ = ["CONTENT_RANGES", "AdaptiveK", "ClassK", "ContentK", "FixedK", "KController", "make_controller"]

#: useful draft lengths by kind of text: (smallest, largest)
CONTENT_RANGES: Final[Mapping[ContentType, tuple[int, int]]] = {
    ContentType.CODE: (20, 24),
    ContentType.JSON: (8, 12),
    ContentType.GENERAL: (8, 12),
    ContentType.PROSE: (4, 8),
}


class KController(Protocol):
    """Chooses K, the number of tokens to draft."""

    @property
    def value(self) -> int:
        """K of the next step."""

    def add(self, drafted: int, accepted: int) -> None:
        """Record a step that sent a draft."""

    def set_content(self, content: ContentType) -> None:
        """Set the kind of text that is being written."""


class FixedK:
    """Constant K."""

    def __init__(self, config: DriverConfig) -> None:
        self.value = config.k_start

    def add(self, drafted: int, accepted: int) -> None:
        """Do nothing."""

    def set_content(self, content: ContentType) -> None:
        """Do nothing."""


class AdaptiveK:
    """K raised and lowered by the acceptance rate over a sliding window."""

    #: steps between changes: with one after every step K would reach a bound before the window has moved
    _REVIEW_EVERY: Final = 16

    def __init__(self, config: DriverConfig) -> None:
        self._config = config
        self._window: deque[tuple[int, int]] = deque(maxlen=config.k_window_steps)
        self._since_review = 0
        self._min, self._max = config.k_min, config.k_max
        self.value = config.k_start

    def add(self, drafted: int, accepted: int) -> None:
        """Record a step that sent a draft, and change K every :attr:`_REVIEW_EVERY` of them."""
        self._window.append((drafted, accepted))
        self._since_review += 1
        if self._since_review < self._REVIEW_EVERY:
            return
        self._since_review = 0
        rate = sum(a for _, a in self._window) / sum(d for d, _ in self._window)
        if rate > self._config.k_raise_above:
            self.value = min(self._max, self.value + self._config.k_step)
        elif rate < self._config.k_lower_below:
            self.value = max(self._min, self.value - self._config.k_step)

    def set_content(self, content: ContentType) -> None:
        """Do nothing."""

    def _set_range(self, low: int, high: int) -> None:
        self._min, self._max = low, high
        self.value = min(high, max(low, self.value))


class ContentK(AdaptiveK):
    """:class:`AdaptiveK` within the range of the kind of text."""

    def set_content(self, content: ContentType) -> None:
        """Set the range of K."""
        self._set_range(*CONTENT_RANGES[content])


class ClassK(AdaptiveK):
    """:class:`AdaptiveK` within the range tried with models of the target's class."""

    def __init__(self, config: DriverConfig) -> None:
        super().__init__(config)
        if config.model_class is not None:  # DriverConfig requires it
            tried = K_TRIED[config.model_class]
            self._set_range(tried[0], tried[-1])


_KINDS: Final[Mapping[Controller, type[FixedK] | type[AdaptiveK]]] = {
    Controller.FIXED: FixedK,
    Controller.ADAPTIVE: AdaptiveK,
    Controller.CONTENT: ContentK,
    Controller.CLASS: ClassK,
}


def make_controller(config: DriverConfig) -> KController:
    """Create the controller that ``config`` names."""
    return _KINDS[config.controller](config)
