"""Golden traces of the driver's state machine: events and decisions as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from suffixsvc.types import Draft
from suffixsvc_driver.drafts.events import (
    Begin,
    BudgetGrant,
    Decision,
    Event,
    LayerAnswer,
    LayerFailed,
    Next,
    Propose,
    QueryLayer,
    StepResult,
    Verify,
)
from suffixsvc_driver.settings.text_kind import ContentType
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine

#: field of an event -> its key in golden files, where they differ
_KEYS = {"batched": "paced", "other_tokens": "beside"}
_FIELDS = {key: name for name, key in _KEYS.items()}


def write_golden(path: Path, trace: Iterable[tuple[Event, Decision]]) -> None:
    """Write a trace, an event and its decision a line."""
    lines = [json.dumps({"in": _event_to_json(e), "out": decision_to_json(d)}) for e, d in trace]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def replay_golden(path: Path, driver: GenerationStateMachine) -> list[Any]:
    """Check that a driver takes the recorded decisions; returns the recorded lines."""
    recorded: list[Any] = json.loads(path.read_text())
    for i, entry in enumerate(recorded):
        decision = decision_to_json(driver.on(_event_from_json(entry["in"])))
        assert decision == entry["out"], f"step {i} of {path.name}"
    return recorded


def _event_to_json(event: Event) -> dict[str, Any]:
    """Return JSON data that :func:`_event_from_json` reads."""
    data: dict[str, Any] = {"event": type(event).__name__}
    if isinstance(event, LayerAnswer):
        draft = {name: getattr(event.draft, name).tolist() for name in _DRAFT_DTYPES}
        return {**data, "layer": event.layer, "seconds": event.seconds, "draft": draft}
    data.update({_KEYS.get(name, name): value for name, value in _values(event).items()})
    if isinstance(event, Begin):
        data["eog_ids"] = sorted(event.eog_ids)
    if isinstance(event, StepResult):
        data["emitted"] = list(event.emitted)
    return data


def _event_from_json(data: Mapping[str, Any]) -> Event:
    """Create an event from the data of :func:`_event_to_json`."""
    values = {_FIELDS.get(k, k): v for k, v in data.items() if k != "event"}
    match data["event"]:
        case "Begin":
            content = ContentType(values.get("content", ContentType.GENERAL))
            return Begin(**{**values, "eog_ids": frozenset(values["eog_ids"]), "content": content})
        case "LayerFailed":
            return LayerFailed(**values)
        case "Next":
            return Next(**values)
        case "BudgetGrant":
            return BudgetGrant(**values)
        case "StepResult":
            kind = values.get("content")
            content_now = None if kind is None else ContentType(kind)
            return StepResult(**{**values, "emitted": tuple(values["emitted"]), "content": content_now})
        case _:
            arrays = {k: np.array(values["draft"][k], dtype=t) for k, t in _DRAFT_DTYPES.items()}
            return LayerAnswer(values["layer"], Draft(**arrays), values["seconds"])


def _values(value: Any) -> dict[str, Any]:
    """Return the fields of an event or a decision."""
    if hasattr(value, "_asdict"):  # a named tuple
        return {name: getattr(value, name) for name in value._fields}
    return {f.name: getattr(value, f.name) for f in fields(value)}


_DRAFT_DTYPES: dict[str, Any] = {
    "token_ids": np.int32,
    "parents": np.int32,
    "probs": np.float32,
    "sources": np.uint8,
    "match_lens": np.int32,
}


def decision_to_json(decision: Decision) -> dict[str, Any]:
    """Plain data; probabilities keep six digits, which is what a golden trace compares."""
    data = _values(decision)
    if isinstance(decision, Verify):
        data["probs"] = [round(p, 6) for p in decision.probs]
        data["token_ids"], data["sources"] = list(decision.token_ids), list(decision.sources)
        del data["considered"], data["rate"]
        if not decision.continued_by:
            del data["continued_by"], data["continued_at"]
        for name in ("parents", "layers"):
            if data[name]:
                data[name] = list(data[name])
            else:
                del data[name]
    if isinstance(decision, Propose):
        data["gains"] = [round(gain, 6) for gain in decision.gains]
    if isinstance(decision, QueryLayer):
        if decision.verified is not None:
            data["verified"] = asdict(decision.verified)
            data["verified"]["source"] = int(decision.verified.source)
        for name in ("after", "suggested"):
            if data[name]:
                data[name] = list(data[name])
            else:
                del data[name]
    return {"decision": type(decision).__name__, **data}
