"""llama.cpp lookup caches: the n-gram files of ``--lookup-cache-static`` and ``--lookup-cache-dynamic``."""

from suffixsvc_caches.lookup.algorithm import DRAFT_TOKENS, LookupDrafter, NgramCounts
from suffixsvc_caches.lookup.faults import Fault, FaultEffect, find_faults
from suffixsvc_caches.lookup.files import read_lookup, write_lookup
from suffixsvc_caches.lookup.table import MAX_ORDER, STATIC_ORDER, LookupTable, merge_tables

__all__ = [
    "DRAFT_TOKENS",
    "MAX_ORDER",
    "STATIC_ORDER",
    "Fault",
    "FaultEffect",
    "LookupDrafter",
    "LookupTable",
    "NgramCounts",
    "find_faults",
    "merge_tables",
    "read_lookup",
    "write_lookup",
]
