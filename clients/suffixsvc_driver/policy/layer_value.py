"""Cost and expected gain of a query to a layer, learned while generating.

The acceptance rate of a layer is not its value: a layer that repeats what earlier layers drafted is accurate
and adds nothing. The value of a query is the gain that it adds to the step, in tokens. It is estimated by the
state known before the query: the number of steps since the layer last added something (its misses). Hits come
in runs, so a query that finds a run is also credited with the net gain of the next queries of the run, for as
many steps as would have passed before an exploratory query had found it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

from suffixsvc_driver.policy.decaying_mean import DecayingMean

#: first miss count of each bucket after the first
_MISS_EDGES: Final = (1, 2, 3, 5, 9, 17)
#: prior of the gain of a query, tokens
_PRIOR_GAIN: Final = 0.5
#: weight of the level above, in queries
_PRIOR_WEIGHT: Final = 6.0
#: queries after which counts halve
_CAP: Final = 256.0
#: weight of a new measurement of a query's seconds if there was a query in the previous step
_SECONDS_STEP: Final = 0.2
#: from this many measurements on, one above _OUTLIER times the mean is clipped to that: an answer that
#: another process delayed must not exclude a layer
_CLIPPED_AFTER: Final = 4
_OUTLIER: Final = 4.0
#: share of the time that exploratory queries may take
_EXPLORATION_SHARE: Final = 0.02
#: a query that takes no more than this share of the time is always made, so a new run is found early
_NEGLIGIBLE_SHARE: Final = 0.002


class HitRun:
    """Consecutive hits of one generation, credited to the query that found the run.

    Args:
        found_by: mean gain for the miss count of that query.
        credited_steps: steps by which the query found the run earlier than exploration would have. Later hits
            are not credited: a long run would pay for hundreds of queries that find nothing.
    """

    __slots__ = ("_credited_steps", "_found_by")

    def __init__(self, found_by: DecayingMean, credited_steps: float) -> None:
        self._found_by, self._credited_steps = found_by, credited_steps

    def credit(self, added: float, cost: float) -> None:
        """Credit the next query of the run, which added ``added`` tokens and cost ``cost`` tokens."""
        share = min(1.0, self._credited_steps)
        self._credited_steps -= share
        self._found_by.total += share * (added - cost)


class LayerValue:
    """Query statistics of one layer: mean seconds and expected gain in tokens. Not thread-safe.

    Args:
        prior_seconds: seconds of a query before the first measurement.

    Attributes:
        seconds: mean seconds of a query.
    """

    def __init__(self, prior_seconds: float) -> None:
        self.seconds = prior_seconds
        self._skipped_steps = 0
        self._skipped_before_query = 0
        self._measurements = 0
        self._overall = DecayingMean(_CAP)
        self._by_misses: dict[int, DecayingMean] = {}

    def expected_gain(self, misses: int) -> float:
        """Tokens that a query is expected to add to a step, ``misses`` steps after the last gain."""
        gain = self._overall.mean(_PRIOR_GAIN, _PRIOR_WEIGHT)
        cell = self._by_misses.get(bisect_right(_MISS_EDGES, misses))
        return gain if cell is None else cell.mean(gain, _PRIOR_WEIGHT)

    def learn(self, misses: int, added: float) -> DecayingMean:
        """Record the gain of a query, in tokens.

        Returns:
            The mean gain for this miss count, for a :class:`HitRun` that starts with the query.
        """
        self._overall.add(added)
        cell = self._by_misses.setdefault(bisect_right(_MISS_EDGES, misses), DecayingMean(_CAP))
        cell.add(added)
        return cell

    def exploration_due(
        self, every_steps: int, seconds_per_step: float, seconds: float | None = None
    ) -> bool:
        """Whether to query the layer although the expected gain does not cover the cost.

        See :meth:`exploration_interval` for the arguments.
        """
        skipped = self._skipped_steps
        return skipped > 0 and skipped >= self.exploration_interval(every_steps, seconds_per_step, seconds)

    def exploration_interval(
        self, every_steps: int, seconds_per_step: float, seconds: float | None = None
    ) -> float:
        """Steps without a query after which an exploratory query is due.

        Args:
            every_steps: upper bound, unless queries would then take more than their share of the time.
            seconds_per_step: of a plain step of the target; 0 if unknown.
            seconds: of the query; None for the mean so far.
        """
        seconds = self.seconds if seconds is None else seconds
        if seconds <= 0.0:
            return 0.0
        if seconds_per_step <= 0.0:
            return math.inf
        steps = seconds / seconds_per_step
        return min(steps / _NEGLIGIBLE_SHARE, max(every_steps, steps / _EXPLORATION_SHARE))

    def record_query(self) -> None:
        """Record that the layer is queried in this step."""
        self._skipped_before_query, self._skipped_steps = self._skipped_steps, 0

    def record_skip(self) -> None:
        """Record that the layer is not queried in this step."""
        self._skipped_steps += 1

    def measure(self, seconds: float) -> None:
        """Record the seconds of a query; 0 is no measurement.

        The longer the pause before the query, the smaller the weight of earlier measurements: one slow answer
        must not exclude a layer for good.
        """
        if seconds > 0.0:
            self._measurements += 1
            if self._measurements > _CLIPPED_AFTER:
                seconds = min(seconds, _OUTLIER * self.seconds)
            weight = 1.0 - (1.0 - _SECONDS_STEP) ** (1 + self._skipped_before_query)
            self.seconds += weight * (seconds - self.seconds)
