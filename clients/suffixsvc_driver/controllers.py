"""How many tokens first-match drafts: rules that look at acceptance, at the kind of text or at nothing.

They stand beside expected gain so that they can be compared with it (``suffixsvc bench decode``), and for
people who know their K. Ranges and thresholds are those that were found on a 96-core machine with models
of 0.5B to 480B; see docs/driver.md for what they do elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

from suffixsvc_driver.config import Controller, DriverConfig
from suffixsvc_driver.content import ContentType
from suffixsvc_driver.model_class import K_TRIED

__all__ = ["CONTENT_RANGES", "AdaptiveK", "ClassK", "ContentK", "FixedK", "KController", "make_controller"]

#: how many tokens pay by kind of text: (smallest, largest)
CONTENT_RANGES: Final[Mapping[ContentType, tuple[int, int]]] = {
    ContentType.CODE: (20, 24),
    ContentType.JSON: (8, 12),
    ContentType.GENERAL: (8, 12),
    ContentType.PROSE: (4, 8),
}


class KController(Protocol):
    """Says how many tokens to draft."""

    @property
    def value(self) -> int: ...

    def add(self, drafted: int, accepted: int) -> None:
        """A step that sent a draft."""

    def about(self, content: ContentType) -> None:
        """What kind of text is being written."""


class FixedK:
    """Always the same number."""

    def __init__(self, config: DriverConfig) -> None:
        self.value = config.k_start

    def add(self, drafted: int, accepted: int) -> None:
        pass

    def about(self, content: ContentType) -> None:
        pass


class AdaptiveK:
    """Raised and lowered by acceptance over a rolling window."""

    #: looking again after every step would race K to an end before the window has moved
    _REVIEW_EVERY: Final = 16

    def __init__(self, config: DriverConfig) -> None:
        self._config = config
        self._window: deque[tuple[int, int]] = deque(maxlen=config.k_window_steps)
        self._since_review = 0
        self._least, self._most = config.k_min, config.k_max
        self.value = config.k_start

    def add(self, drafted: int, accepted: int) -> None:
        self._window.append((drafted, accepted))
        self._since_review += 1
        if self._since_review < self._REVIEW_EVERY:
            return
        self._since_review = 0
        rate = sum(a for _, a in self._window) / sum(d for d, _ in self._window)
        if rate > self._config.k_raise_above:
            self.value = min(self._most, self.value + self._config.k_step)
        elif rate < self._config.k_lower_below:
            self.value = max(self._least, self.value - self._config.k_step)

    def about(self, content: ContentType) -> None:
        pass


class ContentK(AdaptiveK):
    """As :class:`AdaptiveK`, within the range that belongs to the kind of text."""

    def about(self, content: ContentType) -> None:
        self._least, self._most = CONTENT_RANGES[content]
        self.value = min(self._most, max(self._least, self.value))


class ClassK(AdaptiveK):
    """As :class:`AdaptiveK`, within what was tried with models of this class."""

    def __init__(self, config: DriverConfig) -> None:
        super().__init__(config)
        if config.model_class is not None:  # the settings see to it
            tried = K_TRIED[config.model_class]
            self._least, self._most = tried[0], tried[-1]
            self.value = min(self._most, max(self._least, self.value))


_KINDS: Final[Mapping[Controller, type[FixedK] | type[AdaptiveK]]] = {
    Controller.FIXED: FixedK,
    Controller.ADAPTIVE: AdaptiveK,
    Controller.CONTENT: ContentK,
    Controller.CLASS: ClassK,
}


def make_controller(config: DriverConfig) -> KController:
    """The controller that the settings name."""
    return _KINDS[config.controller](config)
