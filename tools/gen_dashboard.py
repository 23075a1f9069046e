"""Write the Grafana dashboard of the service, docs/dashboard.json, or check it.

.venv/bin/python tools/gen_dashboard.py [--check]
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "docs" / "dashboard.json"
#: filters of every query, and of those by namespace
ALL = 'instance=~"$instance"'
NAMESPACE = f'{ALL},namespace=~"$namespace"'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """A panel: its title, its unit in Grafana's names, and its queries with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str = ""
    kind: str = "timeseries"
    most: float | None = None


def rate(metric: str, by: str = "namespace") -> str:
    """The rate of a counter of namespaces."""
    return f"sum by ({by}) (rate(suffixsvc_{metric}_total{{{NAMESPACE}}}[$__rate_interval]))"


def total(metric: str) -> str:
    """The rate of a counter of the service."""
    return f"sum(rate(suffixsvc_{metric}_total{{{ALL}}}[$__rate_interval]))"


def by_principal(metric: str, by: str = "principal") -> str:
    """The rate of a counter of principals."""
    return f"sum by ({by}) (rate(suffixsvc_{metric}_total{{{ALL}}}[$__rate_interval]))"


def gauge(metric: str, by: str = "namespace") -> str:
    """The sum of a gauge of namespaces."""
    return f"sum by ({by}) (suffixsvc_{metric}{{{NAMESPACE}}})"


def one(metric: str, by: str = "instance") -> str:
    """A gauge of the service."""
    return f"sum by ({by}) (suffixsvc_{metric}{{{ALL}}})"


def quantile(metric: str, share: float) -> str:
    """A quantile of a histogram of the service."""
    buckets = f"rate(suffixsvc_{metric}_bucket{{{ALL}}}[$__rate_interval])"
    return f"histogram_quantile({share}, sum by (le) ({buckets}))"


def quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    """Three quantiles of a histogram, and its mean."""
    mean = " / ".join(
        f"sum(rate(suffixsvc_{metric}_{part}{{{ALL}}}[$__rate_interval]))" for part in ("sum", "count")
    )
    return (
        *((quantile(metric, share), f"{share:.0%}") for share in (0.5, 0.9, 0.99)),
        (mean, "mean"),
    )


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Drafting",
        (
            Panel("Steps", "reqps", ((rate("spec_decode_num_steps"), "{{namespace}}"),)),
            Panel(
                "Draft hit rate",
                "percentunit",
                ((f"{rate('spec_decode_num_drafts')} / {rate('spec_decode_num_steps')}", "{{namespace}}"),),
                "Steps with a draft, of those that requested one.",
                most=1,
            ),
            Panel(
                "Steps without a draft",
                "reqps",
                ((rate("spec_decode_num_misses", "reason"), "{{reason}}"),),
                "no_context: no context occurred before; cost: no token was worth its cost; limit: length 0; "
                "off: turned off.",
            ),
            Panel(
                "Drafted tokens",
                "short",
                (
                    (rate("spec_decode_num_draft_tokens", "instance"), "drafted"),
                    (rate("spec_decode_expected_tokens", "instance"), "expected to be accepted"),
                    (rate("spec_decode_num_accepted_tokens", "instance"), "accepted"),
                ),
                "Per second. Expected and accepted are close where probabilities are calibrated.",
            ),
            Panel(
                "Acceptance rate by layer",
                "percentunit",
                (
                    (
                        f"{rate('spec_decode_num_accepted_tokens_by_source', 'source')} / "
                        f"{rate('spec_decode_num_draft_tokens_by_source', 'source')}",
                        "{{source}}",
                    ),
                ),
                "prompt: the session's own text; suffix: other outputs.",
                most=1,
            ),
            Panel(
                "Drafts by layer",
                "reqps",
                ((rate("spec_decode_num_drafts_by_source", "source"), "{{source}}"),),
            ),
            Panel(
                "Time saved",
                "s",
                (
                    (
                        f"{rate('spec_decode_avoided_seconds')} - {rate('spec_decode_verify_seconds')}",
                        "{{namespace}}",
                    ),
                ),
                "Seconds of the target in each second (docs/metrics.md).",
            ),
            Panel(
                "Plain steps saved",
                "short",
                (
                    (
                        f"{rate('spec_decode_num_accepted_tokens')} - {rate('spec_decode_verify_steps')}",
                        "{{namespace}}",
                    ),
                ),
                "Per second: accepted tokens less the cost of their verification.",
            ),
        ),
    ),
    (
        "Sessions and outputs",
        (
            Panel("Sessions", "short", ((gauge("sessions"), "{{namespace}}"),)),
            Panel("Memory of sessions", "bytes", ((gauge("session_bytes"), "{{namespace}}"),)),
            Panel("Outputs", "short", ((gauge("outputs"), "{{namespace}}"),)),
            Panel(
                "Tokens of outputs",
                "short",
                (
                    (gauge("output_tokens", "instance"), "all"),
                    (gauge("hot_tokens", "instance"), "hot"),
                    (gauge("segment_tokens", "instance"), "in segments"),
                ),
            ),
            Panel(
                "Bytes of outputs",
                "bytes",
                (
                    (gauge("held_bytes"), "{{namespace}}"),
                    (f"{gauge('limit_bytes')} > 0", "limit of {{namespace}}"),
                    (f"{one('cache_limit_bytes')} > 0", "limit of all"),
                ),
            ),
            Panel("Memory of indexes", "bytes", ((gauge("index_bytes"), "{{namespace}}"),)),
            Panel("Segments", "short", ((gauge("segments"), "{{namespace}}"),)),
            Panel("Bytes of segments", "bytes", ((gauge("segment_bytes"), "{{namespace}}"),)),
            Panel(
                "Published runs",
                "short",
                (
                    (gauge("published_runs"), "{{namespace}}"),
                    (gauge("published_tokens"), "tokens of {{namespace}}"),
                    (gauge("min_principals"), "principals of {{namespace}}"),
                ),
                "Of namespaces whose readers without a full grant draft from them.",
            ),
            Panel(
                "Time since published runs were built",
                "s",
                ((f"time() - {gauge('published_timestamp_seconds')} < 1e6", "{{namespace}}"),),
            ),
            Panel(
                "Evicted and refused outputs",
                "short",
                (
                    (rate("evicted_outputs"), "evicted: {{namespace}}"),
                    (rate("refused_outputs"), "refused: {{namespace}}"),
                ),
                "Per second.",
            ),
            Panel("Reuse age", "s", quantiles("reuse_age_seconds"), "Of outputs that drafts are taken from."),
            Panel("Idle before eviction", "s", quantiles("idle_before_evict_seconds")),
            Panel("Namespaces", "short", ((one("namespaces"), "{{instance}}"),)),
            Panel(
                "Drafting turned off",
                "short",
                ((f"{gauge('drafting_off')} > 0", "{{namespace}}"),),
                "By the policy of a namespace.",
            ),
        ),
    ),
    (
        "Principals",
        (
            Panel(
                "Bytes",
                "bytes",
                (
                    (one("principal_held_bytes", "principal"), "outputs of {{principal}}"),
                    (one("principal_session_bytes", "principal"), "sessions of {{principal}}"),
                    (f"{one('principal_limit_bytes', 'principal')} > 0", "limit of {{principal}}"),
                ),
            ),
            Panel(
                "Outputs and sessions",
                "short",
                (
                    (one("principal_outputs", "principal"), "outputs of {{principal}}"),
                    (f"{one('principal_limit_outputs', 'principal')} > 0", "limit of {{principal}}"),
                    (one("principal_sessions", "principal"), "sessions of {{principal}}"),
                ),
            ),
            Panel(
                "Evicted and refused",
                "short",
                (
                    (by_principal("principal_evicted_outputs"), "outputs evicted: {{principal}}"),
                    (
                        by_principal("principal_refused", "principal, limit"),
                        "refused by {{limit}}: {{principal}}",
                    ),
                ),
                "Per second, because of quotas and other limits.",
            ),
            Panel(
                "Drafts of shared text",
                "short",
                (
                    (by_principal("principal_drafted_tokens"), "{{principal}}"),
                    (by_principal("principal_unanswered_tokens"), "unanswered: {{principal}}"),
                    (by_principal("principal_expected_matches"), "expected to match: {{principal}}"),
                    (by_principal("principal_matched_tokens"), "matched: {{principal}}"),
                ),
                "Per second. Many unanswered, or far fewer matched than expected: probing.",
            ),
            Panel(
                "Probing",
                "short",
                (
                    (one("principal_unmatched_tokens", "principal"), "unmatched tokens: {{principal}}"),
                    (one("principal_open_tokens", "principal"), "open tokens: {{principal}}"),
                    (by_principal("principal_drafts"), "drafts per second: {{principal}}"),
                    (by_principal("principal_refused_steps"), "steps refused per second: {{principal}}"),
                ),
            ),
        ),
    ),
    (
        "Followers",
        (
            Panel("Connected", "short", ((one("followers"), "{{instance}}"),)),
            Panel(
                "Lag",
                "µs",
                ((one("follower_lag_lsns", "follower_id, description"), "{{description}}"),),
                "Between the last LSN it has applied and the last one of the log.",
            ),
            Panel(
                "Silent",
                "s",
                ((one("follower_silent_seconds", "follower_id, description"), "{{description}}"),),
            ),
            Panel(
                "Memory",
                "bytes",
                (
                    (one("follower_held_bytes", "follower_id, description"), "held: {{description}}"),
                    (one("follower_mapped_bytes", "follower_id, description"), "mapped: {{description}}"),
                ),
            ),
            Panel(
                "Live text that waits",
                "bytes",
                ((one("follower_live_queued_bytes", "follower_id, description"), "{{description}}"),),
            ),
            Panel(
                "Tokens not acknowledged",
                "short",
                ((one("follower_unacknowledged_tokens", "follower_id, description"), "{{description}}"),),
            ),
        ),
    ),
    (
        "Store and losses",
        (
            Panel("Store", "bytes", ((one("store_bytes"), "{{instance}}"),)),
            Panel(
                "Since the last write",
                "s",
                ((f"time() - max by (instance) (suffixsvc_last_lsn{{{ALL}}}) / 1e6", "{{instance}}"),),
                "LSNs are times in microseconds.",
            ),
            Panel(
                "Queue of the store",
                "short",
                ((one("store_queue_operations"), "{{instance}}"),),
                "Operations.",
            ),
            Panel(
                "Errors of the store",
                "short",
                (
                    (one("store_failing"), "failing"),
                    (total("store_reopened"), "opened again, per second"),
                    (total("store_defects"), "defects, per second"),
                ),
            ),
            Panel(
                "Losses",
                "short",
                (
                    (total("lost_sessions"), "sessions without their output"),
                    (total("live_text_dropped"), "drops of live text"),
                    (total("log_lines_dropped"), "log lines"),
                    (one("unkept_sessions"), "sessions not stored yet"),
                ),
                "Per second; sessions not stored yet: now.",
            ),
        ),
    ),
    (
        "Calls",
        (
            Panel(
                "Calls",
                "reqps",
                (
                    (
                        f"sum by (method) (rate(suffixsvc_calls_total{{{ALL}}}[$__rate_interval]))",
                        "{{method}}",
                    ),
                ),
                "Ended calls. A stream of steps is one.",
            ),
            Panel(
                "Calls that failed",
                "reqps",
                (
                    (
                        f'sum by (code) (rate(suffixsvc_calls_total{{{ALL},code!="OK"}}[$__rate_interval]))',
                        "{{code}}",
                    ),
                ),
            ),
            Panel("Duration", "s", quantiles("call_seconds"), "Of calls of one request and one reply."),
        ),
    ),
    (
        "Background tasks and process",
        (
            Panel(
                "Time since the last success",
                "s",
                ((f"time() - suffixsvc_task_last_success_timestamp_seconds{{{ALL}}} < 1e6", "{{task}}"),),
                "Tasks that have not succeeded yet are left out.",
            ),
            Panel(
                "Failures",
                "short",
                (
                    (
                        f"sum by (task) (rate(suffixsvc_task_failures_total{{{ALL}}}[$__rate_interval]))",
                        "{{task}}",
                    ),
                ),
                "Per second.",
            ),
            Panel(
                "Runs",
                "reqps",
                (
                    (
                        f"sum by (task) (rate(suffixsvc_task_runs_total{{{ALL}}}[$__rate_interval]))",
                        "{{task}}",
                    ),
                ),
            ),
            Panel(
                "Threads of tasks",
                "short",
                ((one("task_alive", "task"), "{{task}}"),),
                "1: the thread runs.",
                most=1,
            ),
            Panel(
                "Memory",
                "bytes",
                (
                    (
                        f"process_resident_memory_bytes{{{ALL}}} and on (instance) suffixsvc_build_info",
                        "{{instance}}",
                    ),
                ),
            ),
            Panel(
                "Descriptors",
                "short",
                (
                    (f"process_open_fds{{{ALL}}} and on (instance) suffixsvc_build_info", "open"),
                    (f"process_max_fds{{{ALL}}} and on (instance) suffixsvc_build_info", "limit"),
                ),
            ),
            Panel("Threads", "short", ((one("threads"), "{{instance}}"),)),
            Panel(
                "TLS certificate expires in",
                "s",
                ((f"{one('tls_certificate_expiry_timestamp_seconds')} - time()", "{{instance}}"),),
            ),
            Panel(
                "CPU",
                "short",
                (
                    (
                        f"rate(process_cpu_seconds_total{{{ALL}}}[$__rate_interval]) "
                        "and on (instance) suffixsvc_build_info",
                        "{{instance}}",
                    ),
                ),
                "Cores.",
            ),
            Panel("Version", "none", ((f"suffixsvc_build_info{{{ALL}}}", "{{version}}"),), kind="stat"),
        ),
    ),
)


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": None if "saved" in panel.title else 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"h": 8, "w": 8, "x": x, "y": y},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
        if panel.kind == "timeseries"
        else {"textMode": "name"},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for i, (query, legend) in enumerate(panel.queries)
        ],
    }


def _variable(name: str, label: str) -> dict[str, Any]:
    query = f"label_values(suffixsvc_spec_decode_num_steps_total, {name})"
    if name == "instance":
        query = "label_values(suffixsvc_build_info, instance)"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        place = {"h": 1, "w": 24, "x": 0, "y": y}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place, "panels": []})
        y += 1
        for i, panel in enumerate(row):
            panels.append(_panel(panel, len(panels) + 1, 8 * (i % 3), y + 8 * (i // 3)))
        y += 8 * -(-len(row) // 3)
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "title": "suffixsvc",
        "uid": "suffixsvc",
        "description": "Metrics of suffixsvc serve --metrics; docs/metrics.md explains them.",
        "tags": ["suffixsvc"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [datasource, _variable("instance", "Service"), _variable("namespace", "Namespace")]
        },
        "panels": panels,
    }


def main() -> int:
    """Write or check the file."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text)
        return 0
    if FILE.read_text() == text:
        return 0
    print(f"{FILE} is not what tools/gen_dashboard.py writes: run it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
