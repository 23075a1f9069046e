"""Real drafts and acceptances at supplied costs: the speedup of the same calls on another machine.

The texts were written by the target; the layers, draft model included, draft for them as in a live run. The
durations of a target step, a layer query and a drafted token come from a file, and a simulated clock adds
them up. The driver therefore decides as it would on that machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from suffixsvc.engine import SuffixCache
from suffixsvc.errors import InvalidCostError
from suffixsvc.types import BackendNamespace, Draft, VerifyCost
from suffixsvc_bench.decode.variants.variants import Setting
from suffixsvc_bench.decode.workload.jobs import AnsweredJob
from suffixsvc_bench.decode.workload.replay_target import ReplayTarget, SimulatedClock, replay_call
from suffixsvc_bench.report.output import read_json
from suffixsvc_bench.speculation.speculator import Speculator
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.layers.worker_layer import break_even_probability
from suffixsvc_driver.settings.driver_config import LayerKind
from suffixsvc_driver.speculation.accounting import Stats

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
    known = f"a file of {_FORMAT}, or {' or '.join(SHIPPED_COSTS)}"
    data = read_json(path, f"{where} must be a readable file of prices", InvalidCostError, expected=known)
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise InvalidCostError(f"{path.name} must be a file of prices", expected=_FORMAT, got=str(data)[:60])
    target, draft, suffix = (_table(data, name, path) for name in _KEYS)
    unit = target["seconds_per_step"]
    if unit <= 0:
        raise InvalidCostError(f"{path.name}: seconds_per_step must be above 0", got=unit)
    if "costs" in target:
        curve = CostCurve.from_json({"costs": target["costs"], "seconds_per_step": unit})
    else:
        for key in ("cost_per_token", "max_width"):
            if key not in target:
                raise InvalidCostError(f"{path.name}: target must have costs, or {key}")
        curve = CostCurve.linear(target["cost_per_token"], int(target["max_width"]), seconds_per_step=unit)
    assumed = data.get("assumed", False)
    if not isinstance(assumed, bool):
        raise InvalidCostError(f"{path.name}: assumed must be true or false", got=repr(assumed)[:60])
    return SuppliedCosts(
        path.stem,
        ASSUMED * assumed + str(data.get("about", "")),
        curve,
        draft["seconds_per_token"],
        draft.get("seconds_per_ask", 0.0),
        suffix["seconds_per_ask"],
        draft.get("seconds_per_read_token", 0.0),
    )


def _table(data: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    """A table of the file, with known keys and numbers."""
    found, keys = data.get(name), _KEYS[name]
    if not isinstance(found, dict):
        raise InvalidCostError(f"{path.name}: {name} must be a table", got=repr(found))
    for key, value in found.items():
        if key not in keys:
            raise InvalidCostError(
                f"{path.name}: keys of {name} must be known", expected=", ".join(keys), got=key
            )
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if key != "costs" and not (number and 0 <= value < float("inf")):
            raise InvalidCostError(f"{path.name}: {key} must be a finite number >= 0", got=repr(value))
    if keys[0] not in found:
        raise InvalidCostError(f"{path.name}: {name} must have {keys[0]}", got=", ".join(found) or "nothing")
    return found


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
        stats = Stats()
        for each in results:
            stats.add(each.result.stats)
        rows.append(
            SuppliedCostRow(
                workload,
                setting.name,
                stats.tokens * costs.curve.seconds_per_step / sum(each.seconds for each in results),
                stats.tokens / stats.steps,
                stats.drafted,
                stats.accepted,
                {name: counts.sent.accepted for name, counts in stats.layers.items()},
            )
        )
    return rows


class _SimulatedModel:
    """A draft model layer that waits for every answer, and whose queries advance the simulated clock.

    A worker that still reads a prompt answers nothing; the query is repeated until it answers or a timeout
    passes.
    """

    def __init__(self, layer: DraftModelLayer, clock: SimulatedClock, costs: SuppliedCosts) -> None:
        self._layer, self._clock, self._costs = layer, clock, costs
        self._unread = 0
        self.spec = replace(
            layer.spec,
            seconds_per_query=costs.draft_query,
            seconds_per_token=costs.draft_token,
            seconds_per_read_token=costs.draft_read,
        )
        self.end = layer.end

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        self._layer.begin(prompt_ids, cost)
        self._unread = len(prompt_ids)

    def draft(self, new_token_ids: Sequence[int], query: QueryLayer) -> Draft:
        session, costs = self._layer.session, self._costs
        until = time.monotonic() + _ANSWER_TIMEOUT_SECONDS
        missing = session.late + session.busy
        draft = self._layer.draft(new_token_ids, query)
        while query.budget > 0 and not len(draft) and time.monotonic() < until:
            if not session.reading and session.late + session.busy == missing:
                break  # an empty draft is its answer
            time.sleep(_PAUSE_SECONDS)
            missing = session.late + session.busy
            draft = self._layer.draft((), query)
        self._unread += len(new_token_ids)
        if query.budget > 0:
            agreed = (
                common_prefix(draft.token_ids.tolist(), query.suggested) if self.spec.max_suggested else 0
            )
            self._clock.now += costs.draft_query + costs.draft_token * max(1, len(draft) - agreed)
            self._clock.now += costs.draft_read * (self._unread + len(query.suggested))
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
    return lambda: _SimulatedModel(make(p_min), clock, costs)


class _SimulatedNamespace:
    """A namespace whose sessions add the duration of a query to the clock at each step."""

    def __init__(self, namespace: BackendNamespace, clock: SimulatedClock, per_ask: float) -> None:
        self._namespace, self._clock, self._per_ask = namespace, clock, per_ask

    def open_session(self, *args: Any, **more: Any) -> Any:
        session = self._namespace.open_session(*args, **more)

        def step(*args: Any, **more: Any) -> Draft:
            self._clock.now += self._per_ask
            return session.step(*args, **more)

        return SimpleNamespace(step=step, close=session.close)
