"""JSON document of a comparison, written and read: tables and plots can be made from it without a replay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.methods import known_methods
from suffixsvc_bench.replay.compare import NamedCost, Plan, Run, TraceResult
from suffixsvc_bench.replay.kinds import RULE
from suffixsvc_bench.report.provenance import Provenance

__all__ = ["Comparison", "as_document", "read_comparison"]

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison that was read. ``request``: the options of the verb as they were given."""

    provenance: Provenance
    request: Mapping[str, Any]
    plan: Plan
    results: Sequence[TraceResult]


def as_document(
    origin: Provenance, request: Mapping[str, Any], plan: Plan, results: Sequence[TraceResult]
) -> dict[str, Any]:
    """The document that ``--json`` prints."""
    return {
        "format": _FORMAT,
        "provenance": origin.as_dict(),
        "request": dict(request),
        "kinds": RULE,
        "plan": {
            "methods": [spec.key for spec in plan.methods],
            "costs": {cost.name: cost.cost for cost in plan.costs},
            "k": plan.k,
            "sweep": list(plan.sweep),
        },
        "traces": [result.as_dict() for result in results],
    }


def read_comparison(path: Path) -> Comparison:
    """Read a document of ``--json``.

    Raises:
        InvalidInputError: it cannot be read, or contains methods that cannot run here.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        _require_format(data["format"])
        plan = Plan(
            methods=[known_methods()[key] for key in data["plan"]["methods"]],
            costs=[NamedCost(name, cost) for name, cost in data["plan"]["costs"].items()],
            k=data["plan"]["k"],
            sweep=tuple(data["plan"]["sweep"]),
        )
        results = [_trace(trace) for trace in data["traces"]]
        return Comparison(Provenance(**data["provenance"]), data["request"], plan, results)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InvalidInputError(
            f"{path} must be readable output of bench replay --json, with its methods installed (make peers)",
            got=f"{type(error).__name__}: {error}"[:200],
        ) from None


def _require_format(number: object) -> None:
    if number != _FORMAT:
        raise ValueError(f"format {number}")


def _trace(data: Mapping[str, Any]) -> TraceResult:
    runs = [
        Run(**(run | {"widths": {int(width): steps for width, steps in run["widths"].items()}}))
        for run in data["runs"]
    ]
    return TraceResult(**(dict(data) | {"agents": tuple(data["agents"]), "runs": runs}))
