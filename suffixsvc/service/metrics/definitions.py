"""Metrics of the service: their names, meanings and labels, and the statistics that they are read from.

docs/metrics.md describes them; a test compares the two.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from suffixsvc.metric_definitions import (
    ACCEPTED_TOKENS_BY_SOURCE,
    DRAFT_TOKENS_BY_SOURCE,
    DRAFTS_BY_SOURCE,
    NUM_ACCEPTED_TOKENS,
    NUM_DRAFT_TOKENS,
    NUM_DRAFTS,
    Metric,
)

PREFIX: Final = "suffixsvc_"
#: namespaces with series of their own, by default
DEFAULT_NAMESPACES: Final = 200


class Reading(NamedTuple):
    """A metric, and the field of statistics that one of its values is read from.

    Attributes:
        values: of the metric's own labels.
    """

    metric: Metric
    field: str
    values: tuple[str, ...] = ()


_MISSES: Final = Metric(
    "spec_decode_num_misses", "Steps that requested a draft and got none, by reason.", ("reason",)
)

#: counters of a namespace; fields of NamespaceStats
NAMESPACE_COUNTERS: Final = (
    Reading(Metric("spec_decode_num_steps", "Steps that requested a draft."), "num_steps"),
    Reading(NUM_DRAFTS, "num_drafts"),
    Reading(NUM_DRAFT_TOKENS, "num_draft_tokens"),
    Reading(NUM_ACCEPTED_TOKENS, "num_accepted_tokens"),
    Reading(DRAFTS_BY_SOURCE, "num_session_drafts", ("prompt",)),
    Reading(DRAFTS_BY_SOURCE, "num_namespace_drafts", ("suffix",)),
    Reading(DRAFT_TOKENS_BY_SOURCE, "num_session_draft_tokens", ("prompt",)),
    Reading(DRAFT_TOKENS_BY_SOURCE, "num_namespace_draft_tokens", ("suffix",)),
    Reading(ACCEPTED_TOKENS_BY_SOURCE, "num_session_accepted_tokens", ("prompt",)),
    Reading(ACCEPTED_TOKENS_BY_SOURCE, "num_namespace_accepted_tokens", ("suffix",)),
    Reading(_MISSES, "num_no_context", ("no_context",)),
    Reading(_MISSES, "num_not_worth_cost", ("cost",)),
    Reading(_MISSES, "num_over_limit", ("limit",)),
    Reading(_MISSES, "num_off", ("off",)),
    Reading(
        Metric("spec_decode_expected_tokens", "Accepted drafted tokens, as drafts predicted them."),
        "expected_tokens",
    ),
    Reading(
        Metric("spec_decode_verify_steps", "Cost of steps beyond that of plain ones, in plain steps."),
        "verify_steps",
    ),
    Reading(
        Metric("spec_decode_avoided_seconds", "Time of the plain steps that accepted tokens replaced."),
        "avoided_seconds",
    ),
    Reading(Metric("spec_decode_verify_seconds", "Time of the cost of verification."), "verify_seconds"),
    Reading(Metric("evicted_outputs", "Outputs evicted because of a limit."), "evicted_outputs"),
    Reading(Metric("refused_outputs", "Outputs of sessions refused because of a limit."), "refused_outputs"),
)
#: gauges of a namespace; fields of NamespaceStats
NAMESPACE_GAUGES: Final = (
    Reading(Metric("outputs", "Stored outputs."), "outputs"),
    Reading(Metric("output_tokens", "Tokens of stored outputs."), "tokens"),
    Reading(Metric("hot_tokens", "Tokens of stored outputs that are not in a segment."), "hot_tokens"),
    Reading(Metric("sessions", "Live sessions."), "sessions"),
    Reading(Metric("session_bytes", "Memory of live sessions."), "session_bytes"),
    Reading(Metric("held_bytes", "Bytes of outputs in log and index, as limits count them."), "held_bytes"),
    Reading(Metric("limit_bytes", "Limit of held_bytes; 0: none."), "limit_bytes"),
    Reading(Metric("index_bytes", "Memory of the index."), "index_bytes"),
    Reading(Metric("segments", "Sealed segments."), "segments"),
    Reading(Metric("segment_bytes", "Bytes of the files of sealed segments."), "segment_bytes"),
    Reading(Metric("drafting_off", "Whether its policy turns drafting off: 1 or 0."), "drafting_off"),
)
#: gauges of a namespace with ``min_principals``, unless its series is that of many; fields of NamespaceStats
PUBLISHED_GAUGES: Final = (
    Reading(Metric("min_principals", "Principals that a published run needs."), "min_principals"),
    Reading(Metric("published_runs", "Published runs."), "published_runs"),
    Reading(Metric("published_tokens", "Tokens of published runs."), "published_tokens"),
    Reading(
        Metric(
            "published_timestamp_seconds",
            "Time of the last build of published runs, since the epoch; 0: there was none.",
        ),
        "last_published",
    ),
)
#: of the namespaces together, or one of which there are too many to name
SEGMENT_TOKENS: Final = Metric("segment_tokens", "Tokens of stored outputs that are in a segment.")

#: of the whole service; fields of GetStatsReply
SERVICE_COUNTERS: Final = (
    Reading(Metric("lost_sessions", "Sessions released without their output."), "lost_sessions"),
    Reading(Metric("live_text_dropped", "Times that live text of a follower was dropped."), "live_lost"),
    Reading(Metric("log_lines_dropped", "Log lines dropped: stderr was not read."), "dropped_log_lines"),
    Reading(Metric("store_reopened", "Reopenings of the store after an error."), "store_reopened"),
    Reading(Metric("store_defects", "Unexpected exceptions in the store's thread."), "store_defects"),
)
SERVICE_GAUGES: Final = (
    Reading(Metric("store_bytes", "Bytes of the store."), "store_bytes"),
    Reading(Metric("last_lsn", "Last LSN of the log."), "last_lsn"),
    Reading(Metric("store_failing", "Whether writes fail now: 1 or 0."), "store_failing"),
    Reading(Metric("store_queue_operations", "Operations that wait for the store's thread."), "store_queue"),
    Reading(Metric("unkept_sessions", "Live sessions whose last close failed."), "unkept_sessions"),
    Reading(Metric("cache_limit_bytes", "Limit of the whole cache; 0: none."), "limit_bytes"),
)
NAMESPACES: Final = Metric("namespaces", "Namespaces.")
TLS_CERTIFICATE_EXPIRY: Final = Metric(
    "tls_certificate_expiry_timestamp_seconds", "Time at which the TLS certificate in use expires."
)
CALLS: Final = Metric("calls", "Ended gRPC calls, by status.", ("method", "code"))
CALL_SECONDS: Final = Metric("call_seconds", "Duration of calls of one request and reply.", ("method",))
THREADS: Final = Metric("threads", "Threads of the process.")
BUILD: Final = Metric("build", "Version and instance of the service.")

REUSE_AGE: Final = Metric("reuse_age_seconds", "Age of outputs when a draft from them was noted.")
IDLE_BEFORE_EVICT: Final = Metric(
    "idle_before_evict_seconds", "Time between the last use of an output and its eviction."
)

FOLLOWERS: Final = Metric("followers", "Connected followers.")
#: of a connected follower; fields of FollowerStats
FOLLOWER_LABELS: Final = ("follower_id", "description")
FOLLOWER_GAUGES: Final = (
    Reading(
        Metric(
            "follower_lag_lsns",
            "Microseconds from the last LSN that it has applied to that of the log.",
            FOLLOWER_LABELS,
        ),
        "lag",
    ),
    Reading(
        Metric("follower_silent_seconds", "Time since its last report.", FOLLOWER_LABELS), "silent_seconds"
    ),
    Reading(Metric("follower_held_bytes", "Memory of its copies.", FOLLOWER_LABELS), "held_bytes"),
    Reading(Metric("follower_mapped_bytes", "Bytes of its segments.", FOLLOWER_LABELS), "mapped_bytes"),
    Reading(
        Metric("follower_live_queued_bytes", "Live text that waits to be sent to it.", FOLLOWER_LABELS),
        "live_queued_bytes",
    ),
    Reading(
        Metric(
            "follower_unacknowledged_tokens",
            "Tokens of its sessions that the service has not acknowledged.",
            FOLLOWER_LABELS,
        ),
        "unacknowledged_tokens",
    ),
)

#: of a principal with a quota; fields of PrincipalStats
PRINCIPAL_GAUGES: Final = (
    Reading(Metric("principal_outputs", "Outputs of a principal.", ("principal",)), "outputs"),
    Reading(
        Metric("principal_held_bytes", "Bytes of its outputs, as its quota charges them.", ("principal",)),
        "held_bytes",
    ),
    Reading(Metric("principal_sessions", "Its live sessions.", ("principal",)), "sessions"),
    Reading(Metric("principal_session_bytes", "Their memory.", ("principal",)), "session_bytes"),
    Reading(
        Metric("principal_limit_bytes", "Limit of its bytes, sessions included; 0: none.", ("principal",)),
        "limit_bytes",
    ),
    Reading(
        Metric("principal_limit_outputs", "Limit of its outputs; 0: none.", ("principal",)), "limit_outputs"
    ),
)
PRINCIPAL_COUNTERS: Final = (
    Reading(
        Metric("principal_evicted_outputs", "Outputs evicted to keep its quota.", ("principal",)),
        "evicted_outputs",
    ),
)
#: ``refused`` of PrincipalStats, of the limit QUOTA, and of RefusalStats, of other limits
PRINCIPAL_REFUSED: Final = Metric(
    "principal_refused", "Messages, writes and sessions that a limit of it refused.", ("principal", "limit")
)
QUOTA: Final = "quota"
#: of a principal that had sessions; fields of ProbeStats
PROBE_COUNTERS: Final = (
    Reading(Metric("principal_drafts", "Drafts with tokens of shared text.", ("principal",)), "drafts"),
    Reading(
        Metric("principal_drafted_tokens", "Tokens of shared text in drafts.", ("principal",)),
        "drafted_tokens",
    ),
    Reading(
        Metric("principal_unanswered_tokens", "Of these, those without an answer.", ("principal",)),
        "unanswered_tokens",
    ),
    Reading(
        Metric("principal_expected_matches", "Matches of answered tokens as predicted.", ("principal",)),
        "expected_matches",
    ),
    Reading(
        Metric("principal_matched_tokens", "Answered tokens that matched.", ("principal",)),
        "matched_tokens",
    ),
    Reading(
        Metric("principal_refused_steps", "Steps refused for unmatched or open tokens.", ("principal",)),
        "refused_steps",
    ),
)
PROBE_GAUGES: Final = (
    Reading(
        Metric("principal_unmatched_tokens", "Unmatched tokens charged at present.", ("principal",)), "excess"
    ),
    Reading(
        Metric("principal_open_tokens", "Drafted tokens without an answer yet.", ("principal",)),
        "open_tokens",
    ),
)

#: of a background task; fields of BackgroundTask
TASK_COUNTERS: Final = (
    Reading(Metric("task_runs", "Runs of a background task that succeeded.", ("task",)), "runs"),
    Reading(Metric("task_failures", "Runs of a background task that failed.", ("task",)), "failures"),
)
TASK_GAUGES: Final = (
    Reading(
        Metric(
            "task_last_success_timestamp_seconds",
            "Time of the last run that succeeded, since the epoch; 0: none did.",
            ("task",),
        ),
        "last_success",
    ),
    Reading(Metric("task_alive", "Whether the task's thread runs: 1 or 0.", ("task",)), "alive"),
)
