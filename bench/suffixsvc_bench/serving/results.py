"""Results of ``suffixsvc bench http`` as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from suffixsvc_bench.decode.figures import Ratio
from suffixsvc_bench.report.provenance import Provenance
from suffixsvc_bench.serving.figures import BestMode, Row
from suffixsvc_bench.serving.phases.conversation import Conversation
from suffixsvc_bench.serving.phases.json_schema import SchemaPair
from suffixsvc_bench.serving.requirements import Requirement, requirements_of
from suffixsvc_bench.serving.servers.client import Reply
from suffixsvc_bench.serving.servers.process import DRAFTS
from suffixsvc_bench.speculation.paired import Outcome


@dataclass(slots=True)
class Measured:
    """Everything that a run measured.

    Attributes:
        reference: subject over which speeds are given.
        rows: one client: one summary for each workload and subject.
        best: one client: this server over llama-server's best mode.
        overhead: one client: seconds per token without drafts over the driver's, generation phase.
        clients: several clients: tokens per second over the reference's, by subject.
        client_outcomes: several clients: every group, by subject.
        conversations: by subject.
        schemas: pairs with the schema and without, by subject.
        schema_ratios: tokens per second with the schema over without: whole and generation, by subject.
        idle: share of a core that a process used while others were timed.
        replies: one client: every answer, by workload and subject.
        failed: what could not be measured, by part and subject.
    """

    provenance: Provenance
    target: str
    options: dict[str, Any]
    reference: str = ""
    rows: list[Row] = field(default_factory=list)
    best: list[BestMode] = field(default_factory=list)
    overhead: Ratio | None = None
    clients: dict[str, Ratio] = field(default_factory=dict)
    client_outcomes: dict[str, Sequence[Outcome]] = field(default_factory=dict)
    conversations: dict[str, Conversation] = field(default_factory=dict)
    schemas: dict[str, Sequence[SchemaPair]] = field(default_factory=dict)
    schema_ratios: dict[str, dict[str, Ratio]] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)
    replies: dict[str, Mapping[str, Sequence[Reply]]] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def figures(self) -> list[Requirement]:
        """The figures of the parts that were run, beside what is required of them."""
        return requirements_of(
            reference=self.reference,
            rows=self.rows,
            best=self.best,
            clients=self.clients,
            parallel=self.options["parallel"],
            overhead=self.overhead,
            conversation=self.conversations.get(DRAFTS),
            schema=self.schema_ratios.get(DRAFTS, {}),
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        return {
            "provenance": self.provenance.as_dict(),
            "target": self.target,
            "options": self.options,
            "reference": self.reference,
            "figures": [asdict(each) for each in self.figures],
            "rows": [asdict(row) for row in self.rows],
            "best": [asdict(each) for each in self.best],
            "overhead": None if self.overhead is None else asdict(self.overhead),
            "clients": {name: asdict(found) for name, found in self.clients.items()},
            "client_groups": {
                name: [{"tokens": each.tokens, "seconds": round(each.seconds, 5)} for each in outcomes]
                for name, outcomes in self.client_outcomes.items()
            },
            "conversations": {
                name: {
                    "computed": each.computed,
                    "new": each.new,
                    "ratio": each.ratio,
                    "turns": [asdict(turn) for turn in each.turns],
                }
                for name, each in self.conversations.items()
            },
            "schemas": {
                name: {
                    "ratios": {kind: asdict(found) for kind, found in self.schema_ratios[name].items()},
                    "valid": sum(pair.valid for pair in pairs),
                    "pairs": [
                        {"task": pair.key, "on": _times(pair.on), "off": _times(pair.off)} for pair in pairs
                    ],
                }
                for name, pairs in self.schemas.items()
            },
            "idle": self.idle,
            "failed": self.failed,
            "answers": {
                workload: {name: [_times(reply) for reply in replies] for name, replies in subjects.items()}
                for workload, subjects in self.replies.items()
            },
        }


def _times(reply: Reply) -> dict[str, Any]:
    names = ("tokens", "prompt_tokens", "cached_tokens", "drafted", "accepted")
    return {name: getattr(reply, name) for name in names} | {
        "seconds": round(reply.seconds, 5),
        "first_seconds": round(reply.first_seconds, 5),
    }
