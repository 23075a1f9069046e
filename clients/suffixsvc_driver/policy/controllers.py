"""Draft-length controllers of the first-match policy: fixed, by acceptance, by kind of text, by model class.

They serve as baselines for expected gain (``suffixsvc bench decode``) and for users who know their K.
Ranges and thresholds were found on a 96-core machine with models of 0.5B to 480B; docs/driver.md has
results of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from suffixsvc_driver.settings.driver_config import Controller, DriverConfig
from suffixsvc_driver.settings.model_class import CLASS_RANGES
from suffixsvc_driver.settings.text_kind import ContentType

#: steps between changes: with one after every step K would reach a bound before the window has moved
_REVIEW_EVERY: Final = 16
#: useful draft lengths by kind of text: (smallest, largest)
CONTENT_RANGES: Final[Mapping[ContentType, tuple[int, int]]] = {
    ContentType.CODE: (20, 24),
    ContentType.JSON: (8, 12),
    ContentType.GENERAL: (8, 12),
    ContentType.PROSE: (4, 8),
}


class KController:
    """Chooses K, the number of tokens to draft.

    K is raised and lowered by the acceptance rate over a sliding window, within the range of the controller.
    """

    def __init__(self, config: DriverConfig) -> None:
        self._config = config
        self._window: deque[tuple[int, int]] = deque(maxlen=config.k_window_steps)
        self._since_review = 0
        self.value = config.k_start
        self._set_range(config.k_start, config.k_start)
        if config.controller is Controller.ADAPTIVE:
            self._set_range(config.k_min, config.k_max)
        elif config.controller is Controller.CLASS and config.model_class is not None:
            self._set_range(*CLASS_RANGES[config.model_class])

    def add(self, drafted: int, accepted: int) -> None:
        """Record a step that sent a draft; every _REVIEW_EVERY of them the acceptance rate may change K."""
        self._window.append((drafted, accepted))
        self._since_review += 1
        if self._since_review < _REVIEW_EVERY:
            return
        self._since_review = 0
        rate = sum(a for _, a in self._window) / sum(d for d, _ in self._window)
        if rate > self._config.k_raise_above:
            self.value = min(self._max, self.value + self._config.k_step)
        elif rate < self._config.k_lower_below:
            self.value = max(self._min, self.value - self._config.k_step)

    def set_content(self, content: ContentType) -> None:
        """Set the kind of text that is being written.

        The window and the count of steps since the last review are kept: the kind is guessed anew every 64
        tokens, and in text of changing kind a controller that started over might never review K.
        """
        if self._config.controller is Controller.CONTENT:
            self._set_range(*CONTENT_RANGES[content])

    def _set_range(self, low: int, high: int) -> None:
        self._min, self._max = low, high
        self.value = min(high, max(low, self.value))
