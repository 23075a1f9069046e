"""Replay of recorded logs without a model: what a drafting method would have drafted, and how
much was right."""

from suffixsvc_bench.replay.logs import Call, read_calls
from suffixsvc_bench.replay.run import Replay, ReplayOptions, accepted_path, replay

__all__ = ["Call", "Replay", "ReplayOptions", "accepted_path", "read_calls", "replay"]
