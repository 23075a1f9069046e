"""Real drafts and acceptances at supplied costs: the speedup of the same calls on another machine.

The texts were written by the target; the layers, draft model included, draft for them as in a live run. The
durations of a target step, a layer query and a drafted token come from a file, and a simulated clock adds
them up. The driver therefore decides as it would on that machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from suffixsvc.engine import SuffixCache
from suffixsvc.errors import InvalidCostError
from suffixsvc.types import Draft, VerifyCost
from suffixsvc_bench.decode.variants.variants import Setting
from suffixsvc_bench.decode.workload.jobs import AnsweredJob
from suffixsvc_bench.decode.workload.replay_target import ReplayTarget, SimulatedClock, replay_call
from suffixsvc_bench.speculation.speculator import Speculator
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.drafts.events import Feedback
from suffixsvc_driver.layers import ContinuingLayer, Layer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.layers.worker_layer import break_even_probability
from suffixsvc_driver.settings.driver_config import LayerKind

__all__ = [
    "ASSUMED",
    "SHIPPED_COSTS",
    "SuppliedCostRow",
    "SuppliedCosts",
    "read_supplied_costs",
    "replay_at_costs",
    "supplied_costs_heading",
]

_FORMAT: Final = "suffixsvc-prices/1"
#: prefix of the description of costs that were not measured
ASSUMED: Final = "assumed, not measured: "
_ANSWER_TIMEOUT_SECONDS: Final = 120.0
_PAUSE_SECONDS: Final = 0.02
#: keys of a file, by table; the first key of each is required
_KEYS: Final = {
    "target": ("seconds_per_step", "costs", "cost_per_token", "max_width"),
    "draft_model": ("seconds_per_token", "seconds_per_ask", "seconds_per_read_token"),
    "suffix": ("seconds_per_ask",),
}
_FOLDER: Final = Path(__file__).with_name("prices")
#: costs shipped with the package, by name
SHIPPED_COSTS: Final = {path.stem: path for path in sorted(_FOLDER.glob("*.json"))}


@dataclass(frozen=True, slots=True)
class SuppliedCosts:
    """Durations of the operations of a machine.

    Attributes:
        about: description of the machine.
        curve: cost curve of the target, with the seconds of a plain step.
        draft_token, draft_query, suffix_query: seconds of a drafted token, of a draft model query and of a
            suffix query.
        draft_read: seconds in which the draft model reads one token of unseen text.
    """

    name: str
    about: str
    curve: CostCurve
    draft_token: float
    draft_query: float
    suffix_query: float
    draft_read: float = 0.0


@dataclass(frozen=True, slots=True)
class SuppliedCostRow:
    """Summary of one setting on one workload's calls."""

    workload: str
    setting: str
    speedup: float
    tokens_per_step: float
    drafted: int
    accepted: int
    by_layer: dict[str, int]


def read_supplied_costs(where: str | Path) -> SuppliedCosts:
    """Read costs from a file, or by a name in :data:`SHIPPED_COSTS`.

    Raises:
        InvalidCostError: the file or the name does not exist, or a value is invalid.
    """
    path = SHIPPED_COSTS.get(str(where), Path(where))
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as err:
        raise InvalidCostError(
            f"{where} must be a readable file of prices",
            expected=f"a file of {_FORMAT}, or {' or '.join(SHIPPED_COSTS)}",
            got=str(err),
        ) from None
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise InvalidCostError(f"{path.name} must be a file of prices", expected=_FORMAT, got=str(data)[:60])
    target = _table(data, "target", path)
    unit = _number(target, "seconds_per_step", path)
    if unit <= 0:
        raise InvalidCostError(f"{path.name}: seconds_per_step must be above 0", got=unit)
    if "costs" in target:
        curve = CostCurve.from_json({"costs": target["costs"], "seconds_per_step": unit})
    else:
        for key in ("cost_per_token", "max_width"):
            if key not in target:
                raise InvalidCostError(f"{path.name}: target must have costs, or {key}")
        width = int(_number(target, "max_width", path))
        curve = CostCurve.linear(_number(target, "cost_per_token", path), width, seconds_per_step=unit)
    draft, suffix = _table(data, "draft_model", path), _table(data, "suffix", path)
    assumed = data.get("assumed", False)
    if not isinstance(assumed, bool):
        raise InvalidCostError(f"{path.name}: assumed must be true or false", got=repr(assumed)[:60])
    return SuppliedCosts(
        path.stem,
        ASSUMED * assumed + str(data.get("about", "")),
        curve,
        _number(draft, "seconds_per_token", path),
        _number(draft, "seconds_per_ask", path),
        _number(suffix, "seconds_per_ask", path),
        _number(draft, "seconds_per_read_token", path),
    )


def supplied_costs_heading(name: str, about: str) -> str:
    """Heading of a table at these costs."""
    return f"At the {'assumed ' if about.startswith(ASSUMED) else ''}prices of {name}"


def replay_at_costs(
    workload: str,
    calls: Sequence[AnsweredJob],
    warmup: Sequence[AnsweredJob],
    settings: Sequence[Setting],
    costs: SuppliedCosts,
    vocab_size: int,
    eog_ids: frozenset[int],
    draft_model: Callable[[float], DraftModelLayer] | None,
    on_call: Callable[[str, str], None] = lambda setting, job: None,
) -> list[SuppliedCostRow]:
    """Replay the calls under each setting at the given costs.

    Args:
        calls, warmup: calls to measure, and calls that fill the namespace before.
        draft_model: makes a layer with the given p_min; the layer waits until the real draft model answers.
        on_call: called with the setting's name and the job's key before each call.
    """
    rows = []
    for setting in settings:
        clock = SimulatedClock()
        with SuffixCache() as cache:
            memory = cache.namespace("priced")
            target = ReplayTarget(vocab_size, eog_ids, costs.curve, clock)
            with_memory = LayerKind.SUFFIX in setting.layers
            before = Speculator(
                target,
                costs.curve,
                _SimulatedNamespace(memory, clock, costs.suffix_query) if with_memory else None,
                None,
                LayerKind.PROMPT_LOOKUP in setting.layers,
                clock=clock,
            )
            for written in warmup:
                replay_call(written, target, before, setting.config)
            speculator = replace(before, draft_model=_simulated_model(draft_model, clock, costs, setting))
            results = []
            for written in calls:
                on_call(setting.name, written.job.key)
                results.append(replay_call(written, target, speculator, setting.config))
        stats = [each.result.stats for each in results]
        tokens = sum(s.tokens for s in stats)
        accepted: dict[str, int] = {}
        for s in stats:
            for name, counts in s.layers.items():
                accepted[name] = accepted.get(name, 0) + counts.sent.accepted
        rows.append(
            SuppliedCostRow(
                workload,
                setting.name,
                tokens * costs.curve.seconds_per_step / sum(each.seconds for each in results),
                tokens / sum(s.steps for s in stats),
                sum(s.drafted for s in stats),
                sum(s.accepted for s in stats),
                accepted,
            )
        )
    return rows


class _WrappedLayer:
    """Base class of layers that delegate to another layer."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self.spec = layer.spec

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        self._layer.begin(prompt_ids, cost)

    def draft(
        self,
        new_token_ids: Sequence[int],
        budget: int,
        verified: Feedback | None,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Draft:
        if (after or suggested) and isinstance(self._layer, ContinuingLayer):
            return self._layer.draft(new_token_ids, budget, verified, after=after, suggested=suggested)
        return self._layer.draft(new_token_ids, budget, verified)

    def end(self, new_token_ids: Sequence[int], verified: Feedback | None) -> None:
        self._layer.end(new_token_ids, verified)


class _SimulatedModel(_WrappedLayer):
    """A draft model whose queries advance the simulated clock."""

    def __init__(self, layer: Layer, clock: SimulatedClock, costs: SuppliedCosts) -> None:
        super().__init__(layer)
        self._clock, self._costs = clock, costs
        self._unread = 0
        self.spec = replace(
            layer.spec,
            seconds_per_query=costs.draft_query,
            seconds_per_token=costs.draft_token,
            seconds_per_read_token=costs.draft_read,
        )

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        super().begin(prompt_ids, cost)
        self._unread = len(prompt_ids)

    def draft(
        self,
        new_token_ids: Sequence[int],
        budget: int,
        verified: Feedback | None,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Draft:
        draft = super().draft(new_token_ids, budget, verified, after, suggested)
        costs = self._costs
        self._unread += len(new_token_ids)
        if budget > 0:
            agreed = common_prefix(draft.token_ids.tolist(), suggested) if self.spec.checks else 0
            self._clock.now += costs.draft_query + costs.draft_token * max(1, len(draft) - agreed)
            self._clock.now += costs.draft_read * (self._unread + len(suggested))
            self._unread = 0
        return draft


def _simulated_model(
    make: Callable[[float], DraftModelLayer] | None,
    clock: SimulatedClock,
    costs: SuppliedCosts,
    setting: Setting,
) -> Callable[[], Layer] | None:
    if make is None or LayerKind.DRAFT_MODEL not in setting.layers:
        return None
    p_min = break_even_probability(costs.curve, costs.draft_token)
    return lambda: _SimulatedModel(_WaitingModel(make(p_min)), clock, costs)


class _WaitingModel(_WrappedLayer):
    """A draft model layer that waits for every answer.

    A worker that still reads a prompt answers nothing; the query is repeated until it answers or a timeout
    passes.
    """

    def __init__(self, layer: DraftModelLayer) -> None:
        super().__init__(layer)
        self._session = layer.session

    def draft(
        self,
        new_token_ids: Sequence[int],
        budget: int,
        verified: Feedback | None,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Draft:
        until = time.monotonic() + _ANSWER_TIMEOUT_SECONDS
        before = self._missing_answers()
        draft = super().draft(new_token_ids, budget, verified, after, suggested)
        while budget > 0 and not len(draft.token_ids) and time.monotonic() < until:
            if not self._session.reading and self._missing_answers() == before:
                break  # an empty draft is its answer
            time.sleep(_PAUSE_SECONDS)
            before = self._missing_answers()
            draft = super().draft((), budget, verified, after, suggested)
        return draft

    def _missing_answers(self) -> int:
        return self._session.late + self._session.busy


class _SimulatedNamespace:
    """A namespace whose sessions add the duration of a query to the clock at each step."""

    def __init__(self, namespace: Any, clock: SimulatedClock, per_ask: float) -> None:
        self._namespace, self._clock, self._per_ask = namespace, clock, per_ask

    def open_session(self, *args: Any, **more: Any) -> Any:
        return _PricedSession(self._namespace.open_session(*args, **more), self._clock, self._per_ask)


class _PricedSession:
    def __init__(self, session: Any, clock: SimulatedClock, per_ask: float) -> None:
        self._session, self._clock, self._per_ask = session, clock, per_ask

    def step(self, *args: Any, **more: Any) -> Draft:
        self._clock.now += self._per_ask
        draft: Draft = self._session.step(*args, **more)
        return draft

    def close(self, commit: bool = True) -> object:
        return self._session.close(commit=commit)


def _table(data: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    found = data.get(name)
    if not isinstance(found, dict):
        raise InvalidCostError(f"{path.name}: {name} must be a table", got=repr(found))
    keys = _KEYS[name]
    for key in found:
        if key not in keys:
            raise InvalidCostError(
                f"{path.name}: keys of {name} must be known", expected=", ".join(keys), got=key
            )
    if keys[0] not in found:
        raise InvalidCostError(f"{path.name}: {name} must have {keys[0]}", got=", ".join(found) or "nothing")
    return found


def _number(data: dict[str, Any], name: str, path: Path) -> float:
    value = data.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise InvalidCostError(f"{path.name}: {name} must be a finite number >= 0", got=repr(value))
    return float(value)
