"""A step's verify cost for the wire, encoded once: most callers give the same one at every step."""

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
    """The message, and its bytes to compare it by."""

    message: types_pb2.VerifyCost
    data: bytes


#: says nothing: the service goes on with the session's last cost
_UNKNOWN: Final = EncodedCost(types_pb2.VerifyCost(), b"")


class CostEncoder:
    """Encodes a cost unless it is the last one. Not thread-safe."""

    def __init__(self) -> None:
        self._known: object = None
        self._encoded = _UNKNOWN

    def encode(self, cost: VerifyCost) -> EncodedCost:
        """InvalidCostError: NaN, infinite, negative, empty or not numbers."""
        if type(cost) is float and type(self._known) is float and cost == self._known:
            return self._encoded
        key = cost_key(cost)
        if key is None or type(key) is not type(self._known) or key != self._known:
            message = wire.cost_to_proto(cost)
            self._encoded = EncodedCost(message, message.SerializeToString())
            self._known = key
        return self._encoded
