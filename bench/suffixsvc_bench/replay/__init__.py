"""Replays recorded logs as if they were generated now, and measures what would have been drafted."""

from suffixsvc_bench.replay.logs import Call, read_calls
from suffixsvc_bench.replay.run import Replay, ReplayOptions, accepted_path, replay

__all__ = ["Call", "Replay", "ReplayOptions", "accepted_path", "read_calls", "replay"]
