"""Ids of requests, which log lines carry: chosen by the client (``x-request-id``), or generated."""

from __future__ import annotations

import re
import uuid
from typing import Final

#: name of the header of HTTP, and of the metadata of a gRPC call
REQUEST_ID: Final = "x-request-id"
#: ids of clients that are kept: visible characters, so that none can write lines of a log
_KEPT: Final = re.compile(r"[!-~]{1,128}")


def new_request_id() -> str:
    """Return an id of a request whose client chose none."""
    return f"req_{uuid.uuid4().hex}"


def request_id(asked: str) -> str:
    """Return the id that a client chose, or a new one if that is not 1 to 128 visible ASCII characters."""
    return asked if _KEPT.fullmatch(asked) else new_request_id()
