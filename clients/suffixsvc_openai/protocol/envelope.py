"""Fields that all chunks of a response share."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Envelope:
    """Fields that all chunks of a response share.

    Attributes:
        kind: prefix of the id.
        object: OpenAI's name of the response.
        model: id of the model.
        fingerprint: of the model, as ``system_fingerprint``.
        random: the rest of the id.
    """

    kind: str
    object: str
    model: str
    fingerprint: str
    random: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def id(self) -> str:
        """Id of the response."""
        return f"{self.kind}-{self.random}"

    def wrap(self, choices: list[dict[str, Any]], *, chunk: str = "", **more: Any) -> dict[str, Any]:
        """Return a body.

        Args:
            choices: its choices.
            chunk: suffix of ``object`` in a stream.
            more: further fields.
        """
        return {
            "id": self.id,
            "object": self.object + chunk,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }
