"""What recipes bring on questions that they have not seen: ``suffixsvc bench preload``."""

from suffixsvc_bench.preload_bench.live import LiveRow, run_live
from suffixsvc_bench.preload_bench.replayed import ReplayRow, held_out_calls, run_replay

__all__ = ["LiveRow", "ReplayRow", "held_out_calls", "run_live", "run_replay"]
