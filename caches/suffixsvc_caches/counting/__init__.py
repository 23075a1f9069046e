"""Counting of the n-grams of logs: out of core, parallel or distributed, resumable and deterministic.

logs ─ batches ─> encode, count (workers) ─> runs in a work folder ─> merge by token ranges ─> records
                                                   │
                                             journal: which run has which batches
"""

from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.local import count_logs
from suffixsvc_caches.counting.merging import merge_runs
from suffixsvc_caches.counting.plan import CountOptions, CountPlan, CountResult, Progress
from suffixsvc_caches.counting.records import RecordFile, Records
from suffixsvc_caches.counting.spool import SpooledCall, TokenSpool

__all__ = [
    "CountOptions",
    "CountPlan",
    "CountResult",
    "Journal",
    "Progress",
    "RecordFile",
    "Records",
    "SpooledCall",
    "TokenSpool",
    "count_logs",
    "merge_runs",
]
