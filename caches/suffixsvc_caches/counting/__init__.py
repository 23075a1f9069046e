"""Counting of the n-grams of logs: out of core, parallel or distributed, resumable and deterministic.

logs ─ batches ─> encode, count (workers) ─> runs in a work folder ─> merge by token ranges ─> records
                                                   │
                                             journal: which run has which batches
"""
