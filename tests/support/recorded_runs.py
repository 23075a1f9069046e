"""``generate_many`` on a target whose operations are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from suffixsvc.types import TokenIds
from suffixsvc_driver.decode import parallel
from suffixsvc_driver.decode.generation import Request
from suffixsvc_driver.decode.requests import Run
from suffixsvc_driver.drafts.events import StepResult
from suffixsvc_driver.targets import LaneStep, ParallelTarget, Shape


@dataclass(frozen=True, slots=True)
class Began:
    """The prompt of request number ``request`` was assigned to a lane."""

    lane: int
    request: int
    prompt_ids: tuple[int, ...]
    principal: str = ""


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch of a lane's prompt was computed."""

    lane: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """A shared batch: the part of each generation, and the tokens it emitted; None if sampling failed."""

    steps: tuple[Shape, ...]
    emitted: tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class Parked:
    """The KV of free lanes was moved to main memory."""

    lanes: tuple[int, ...]


#: operation of the target; the same operations on an empty target give the same bits
Operation = Began | Filled | Stepped | Parked


@dataclass(frozen=True, slots=True)
class RecordedRun(Run):
    """A run, and all operations of its target, in order."""

    operations: tuple[Operation, ...] = ()


class _Recorder:
    """A target that records its operations."""

    def __init__(self, target: ParallelTarget) -> None:
        self._target = target
        self._taken = 0
        self._requests: dict[int, int] = {}  # by lane
        self.operations: list[Operation] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def count(self, requests: Iterable[Request]) -> Iterator[Request]:
        for request in requests:
            self._taken += 1
            yield request

    def lane_for(self, prompt_ids: TokenIds, free: Sequence[int], principal: str = "") -> int:
        lane = self._target.lane_for(prompt_ids, free, principal)
        self._requests[lane] = self._taken - 1
        return lane

    def begin(self, lane: int, prompt_ids: TokenIds, principal: str = "", *, fresh: bool = False) -> int:
        reused = self._target.begin(lane, prompt_ids, principal, fresh=fresh)
        prompt = tuple(int(t) for t in prompt_ids)
        self.operations.append(Began(lane, self._requests[lane], prompt, principal))
        return reused

    def park(self, lanes: Iterable[int]) -> None:
        self.operations.append(Parked(tuple(lanes)))
        self._target.park(lanes)

    def prefill(self, lane: int) -> int:
        self.operations.append(Filled(lane))
        return self._target.prefill(lane)

    def verify_many(self, steps: Sequence[LaneStep]) -> list[StepResult | Exception]:
        seen = self._target.verify_many(steps)
        emitted = tuple(None if isinstance(s, Exception) else s.emitted for s in seen)
        self.operations.append(Stepped(tuple((s.lane, s.drafted, s.parents) for s in steps), emitted))
        return seen


def generate_many(
    target: ParallelTarget, requests: Iterable[Request], *args: Any, **options: Any
) -> RecordedRun:
    """See :func:`suffixsvc_driver.decode.parallel.generate_many`."""
    recorder = _Recorder(target)
    run = parallel.generate_many(cast(ParallelTarget, recorder), recorder.count(requests), *args, **options)
    return RecordedRun(run.outcomes, run.seconds, tuple(recorder.operations))
