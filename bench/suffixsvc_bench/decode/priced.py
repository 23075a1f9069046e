"""Real drafts, real acceptances, supplied prices: what the same calls would cost on another machine.

The texts were written by the target; the layers draft for them as they would live, the draft model too. What
a step, a question and a drafted token take comes from a file, and time is a number that these add up to.
So the driver decides as it would decide there, and a layer that cannot pay on two cores can be judged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from suffixsvc_driver.chain import common_prefix
from suffixsvc_driver.config import LayerKind
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.events import Feedback
from suffixsvc_driver.layers import ContinuingLayer, Layer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.layers.worker_layer import least_probability

from suffixsvc.engine import SuffixCache
from suffixsvc.errors import InvalidCostError
from suffixsvc.types import Draft, VerifyCost
from suffixsvc_bench.decode.jobs import Written
from suffixsvc_bench.decode.told import AddedUpClock, ToldTarget, live_through
from suffixsvc_bench.decode.variants import Setting
from suffixsvc_bench.speculator import Speculator

__all__ = ["ASSUMED", "PRICES", "PricedRow", "Prices", "price_calls", "priced_heading", "read_prices"]

_FORMAT: Final = "suffixsvc-prices/1"
#: how prices are introduced that no machine was asked for
ASSUMED: Final = "assumed, not measured: "
_PATIENCE_SECONDS: Final = 120.0
_PAUSE_SECONDS: Final = 0.02
#: what a file has, by table; the first of each has to be there
_KEYS: Final = {
    "target": ("seconds_per_step", "costs", "cost_per_token", "max_width"),
    "draft_model": ("seconds_per_token", "seconds_per_ask", "seconds_per_read_token"),
    "suffix": ("seconds_per_ask",),
}
_FOLDER: Final = Path(__file__).with_name("prices")
#: prices that come with the package, by name
PRICES: Final = {path.stem: path for path in sorted(_FOLDER.glob("*.json"))}


@dataclass(frozen=True, slots=True)
class Prices:
    """What things take somewhere.

    Attributes:
        about: whose prices these are.
        curve: of the target's steps, seconds of a plain one included.
        draft_token, draft_ask, suffix_ask: seconds.
        draft_read: seconds in which the draft model reads a token of what it has not seen.
    """

    name: str
    about: str
    curve: CostCurve
    draft_token: float
    draft_ask: float
    suffix_ask: float
    draft_read: float = 0.0


@dataclass(frozen=True, slots=True)
class PricedRow:
    """One setting over one workload's calls."""

    workload: str
    setting: str
    speedup: float
    tokens_per_step: float
    drafted: int
    accepted: int
    by_layer: dict[str, int]


def read_prices(where: str | Path) -> Prices:
    """Prices of a file, or of a name in :data:`PRICES`.

    Raises:
        InvalidCostError: no such file or name, or something in it makes no sense.
    """
    path = PRICES.get(str(where), Path(where))
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as err:
        raise InvalidCostError(
            f"no prices at {where}", expected=f"a file of {_FORMAT}, or {' or '.join(PRICES)}", got=str(err)
        ) from None
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise InvalidCostError(f"{path.name} holds no prices", expected=_FORMAT, got=str(data)[:60])
    target = _table(data, "target", path)
    unit = _number(target, "seconds_per_step", path)
    if unit <= 0:
        raise InvalidCostError(f"{path.name}: seconds_per_step", expected="a number above 0", got=unit)
    if "costs" in target:
        curve = CostCurve.from_json({"costs": target["costs"], "seconds_per_step": unit})
    else:
        for key in ("cost_per_token", "max_width"):
            if key not in target:
                raise InvalidCostError(f"{path.name}: target", expected=f"costs, or {key}", got="neither")
        width = int(_number(target, "max_width", path))
        curve = CostCurve.linear(_number(target, "cost_per_token", path), width, seconds_per_step=unit)
    draft, suffix = _table(data, "draft_model", path), _table(data, "suffix", path)
    assumed = data.get("assumed", False)
    if not isinstance(assumed, bool):
        raise InvalidCostError(f"{path.name}: assumed must be true or false", got=repr(assumed)[:60])
    return Prices(
        path.stem,
        ASSUMED * assumed + str(data.get("about", "")),
        curve,
        _number(draft, "seconds_per_token", path),
        _number(draft, "seconds_per_ask", path),
        _number(suffix, "seconds_per_ask", path),
        _number(draft, "seconds_per_read_token", path),
    )


def priced_heading(name: str, about: str) -> str:
    """What stands above figures at these prices."""
    return f"At the {'assumed ' if about.startswith(ASSUMED) else ''}prices of {name}"


def price_calls(
    workload: str,
    calls: Sequence[Written],
    warming: Sequence[Written],
    settings: Sequence[Setting],
    prices: Prices,
    vocab_size: int,
    eog_ids: frozenset[int],
    draft_model: Callable[[float], DraftModelLayer] | None,
    on_call: Callable[[str, str], None] = lambda setting, job: None,
) -> list[PricedRow]:
    """What each setting would make of these calls at these prices.

    Args:
        draft_model: makes a layer with this p_min that waits as long as the real draft model needs.
    """
    rows = []
    for setting in settings:
        clock = AddedUpClock()
        with SuffixCache() as cache:
            memory = cache.namespace("priced")
            target = ToldTarget(vocab_size, eog_ids, prices.curve, clock)
            with_memory = LayerKind.SUFFIX in setting.layers
            before = Speculator(
                target,
                prices.curve,
                _PricedNamespace(memory, clock, prices.suffix_ask) if with_memory else None,
                None,
                LayerKind.PROMPT_LOOKUP in setting.layers,
                clock=clock,
            )
            for written in warming:
                live_through(written, target, before, setting.config)
            speculator = replace(before, draft_model=_priced_model(draft_model, clock, prices, setting))
            spoken = []
            for written in calls:
                on_call(setting.name, written.job.key)
                spoken.append(live_through(written, target, speculator, setting.config))
        stats = [each.result.stats for each in spoken]
        tokens = sum(s.tokens for s in stats)
        accepted: dict[str, int] = {}
        for s in stats:
            for name, counts in s.layers.items():
                accepted[name] = accepted.get(name, 0) + counts.sent.accepted
        rows.append(
            PricedRow(
                workload,
                setting.name,
                tokens * prices.curve.seconds_per_step / sum(each.seconds for each in spoken),
                tokens / sum(s.steps for s in stats),
                sum(s.drafted for s in stats),
                sum(s.accepted for s in stats),
                accepted,
            )
        )
    return rows


class _Around:
    """A layer with another one inside."""

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


class _PricedModel(_Around):
    """A draft model whose answers take the time that the prices say."""

    def __init__(self, layer: Layer, clock: AddedUpClock, prices: Prices) -> None:
        super().__init__(layer)
        self._clock, self._prices = clock, prices
        self._unread = 0
        self.spec = replace(
            layer.spec,
            seconds_per_ask=prices.draft_ask,
            seconds_per_token=prices.draft_token,
            seconds_per_read_token=prices.draft_read,
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
        prices = self._prices
        self._unread += len(new_token_ids)
        if budget > 0:
            agreed = common_prefix(draft.token_ids.tolist(), suggested) if self.spec.checks else 0
            self._clock.now += prices.draft_ask + prices.draft_token * max(1, len(draft) - agreed)
            self._clock.now += prices.draft_read * (self._unread + len(suggested))
            self._unread = 0
        return draft


def _priced_model(
    make: Callable[[float], DraftModelLayer] | None, clock: AddedUpClock, prices: Prices, setting: Setting
) -> Callable[[], Layer] | None:
    if make is None or LayerKind.DRAFT_MODEL not in setting.layers:
        return None
    p_min = least_probability(prices.curve, prices.draft_token)
    return lambda: _PricedModel(_Patient(make(p_min)), clock, prices)


class _Patient(_Around):
    """A draft model that is waited for, however long it takes here: time is what the prices say. A worker
    that still reads a prompt answers nothing, as it should live; it is asked again until it answers."""

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
        until = time.monotonic() + _PATIENCE_SECONDS
        before = self._unanswered()
        draft = super().draft(new_token_ids, budget, verified, after, suggested)
        while budget > 0 and not len(draft.token_ids) and time.monotonic() < until:
            if not self._session.reading and self._unanswered() == before:
                break  # that was its answer: nothing
            time.sleep(_PAUSE_SECONDS)
            before = self._unanswered()
            draft = super().draft((), budget, verified, after, suggested)
        return draft

    def _unanswered(self) -> int:
        return self._session.late + self._session.busy


class _PricedNamespace:
    """A namespace whose sessions take the time of a question at each step."""

    def __init__(self, namespace: Any, clock: AddedUpClock, per_ask: float) -> None:
        self._namespace, self._clock, self._per_ask = namespace, clock, per_ask

    def open_session(self, *args: Any, **more: Any) -> Any:
        return _PricedSession(self._namespace.open_session(*args, **more), self._clock, self._per_ask)


class _PricedSession:
    def __init__(self, session: Any, clock: AddedUpClock, per_ask: float) -> None:
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
        raise InvalidCostError(f"{path.name} has no {name}", expected="a table", got=repr(found))
    keys = _KEYS[name]
    for key in found:
        if key not in keys:
            raise InvalidCostError(f"{path.name}: {name} has no {key}", expected=", ".join(keys), got=key)
    if keys[0] not in found:
        raise InvalidCostError(f"{path.name}: {name}", expected=keys[0], got=", ".join(found) or "nothing")
    return found


def _number(data: dict[str, Any], name: str, path: Path) -> float:
    value = data.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise InvalidCostError(f"{path.name}: {name}", expected="a finite number >= 0", got=repr(value))
    return float(value)
