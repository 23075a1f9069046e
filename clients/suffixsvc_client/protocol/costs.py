"""Cached encoding of a step's verify cost: most callers pass the same cost at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from suffixsvc import wire
from suffixsvc.types import VerifyCost
from suffixsvc.v1 import types_pb2
from suffixsvc.values import cost_key

__all__ = ["CostEncoder", "EncodedCost"]


@dataclass(frozen=True, slots=True)
class EncodedCost:
    """A cost message, and its bytes for comparison."""

    message: types_pb2.VerifyCost
    data: bytes


#: empty message: the service keeps the session's last cost
_UNKNOWN: Final = EncodedCost(types_pb2.VerifyCost(), b"")


class CostEncoder:
    """Encodes costs and caches the last one. Not thread-safe."""

    def __init__(self) -> None:
        self._known: object = None
        self._encoded = _UNKNOWN

    def encode(self, cost: VerifyCost) -> EncodedCost:
        """The encoded cost. Raises InvalidCostError: NaN, infinite, negative, empty or not numeric."""
        if type(cost) is float and type(self._known) is float and cost == self._known:
            return self._encoded
        key = cost_key(cost)
        if key is None or type(key) is not type(self._known) or key != self._known:
            message = wire.cost_to_proto(cost)
            self._encoded = EncodedCost(message, message.SerializeToString())
            self._known = key
        return self._encoded
