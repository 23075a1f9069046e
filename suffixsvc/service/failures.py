"""Errors -> what goes over the wire; the table itself is suffixsvc.errors.STATUS."""

from __future__ import annotations

import structlog

from suffixsvc import wire
from suffixsvc.errors import SuffixError
from suffixsvc.v1 import types_pb2

__all__ = ["as_suffix_error", "detail_of"]

log = structlog.get_logger(__name__)


def as_suffix_error(error: Exception, where: str) -> SuffixError:
    """A typed error as it is; anything else is a defect of ours: logged whole, told without its inside."""
    if isinstance(error, SuffixError):
        return error
    log.error("defect", where=where, exc_info=error)
    return SuffixError(
        "the service failed inside", remedy="The service's log has the traceback; please report it."
    )


def detail_of(error: Exception, where: str) -> types_pb2.ErrorDetail:
    return wire.detail_from_error(as_suffix_error(error, where))
