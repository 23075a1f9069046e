"""The server that ``make conformance`` tests."""

from __future__ import annotations

from typing import NamedTuple

MODEL = "qwen2.5-coder-1.5b"


class Endpoint(NamedTuple):
    """Where the server answers."""

    address: str
    base_url: str
