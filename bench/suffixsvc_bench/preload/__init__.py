"""Benchmark of preloaded recipes on held-out questions: ``suffixsvc bench preload``."""

from suffixsvc_bench.preload.live import LiveRow, run_live
from suffixsvc_bench.preload.replayed import ReplayRow, held_out_calls, run_replay

__all__ = ["LiveRow", "ReplayRow", "held_out_calls", "run_live", "run_replay"]
