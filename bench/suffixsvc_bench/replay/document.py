"""JSON document of a comparison, written and read: tables and plots can be made from it without a replay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.methods import known_methods
from suffixsvc_bench.replay.compare import NamedCost, Plan, Run, TraceResult
from suffixsvc_bench.replay.stats import Reliability, ReliabilityBin
from suffixsvc_bench.replay.traces import RULE
from suffixsvc_bench.report.provenance import Provenance

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
        "traces": [asdict(result) for result in results],
    }


def read_comparison(path: Path) -> Comparison:
    """Read a document of ``--json``.

    Raises:
        InvalidInputError: it cannot be read, or contains methods that cannot run here.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']}")  # noqa: TRY301 - reported as the others are
        plan = Plan(
            methods=[known_methods()[key] for key in data["plan"]["methods"]],
            costs=[NamedCost(name, cost) for name, cost in data["plan"]["costs"].items()],
            k=data["plan"]["k"],
            sweep=tuple(data["plan"]["sweep"]),
        )
        results = [
            TraceResult(
                **trace | {"agents": tuple(trace["agents"]), "runs": [_run(run) for run in trace["runs"]]}
            )
            for trace in data["traces"]
        ]
        return Comparison(Provenance(**data["provenance"]), data["request"], plan, results)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InvalidInputError(
            f"{path} must be readable output of bench replay --json, with its methods installed (make peers)",
            got=f"{type(error).__name__}: {error}"[:200],
        ) from None


def _run(data: dict[str, Any]) -> Run:
    found = data["reliability"]
    bins = found and tuple(ReliabilityBin(*each) for each in found["bins"])
    return Run(
        **data
        | {
            "widths": {int(width): steps for width, steps in data["widths"].items()},
            "reliability": found and Reliability(**found | {"bins": bins}),
        }
    )
