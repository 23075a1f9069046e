"""Conversion of exceptions to error details for the wire; the table of codes is suffixsvc.wire.STATUS."""

from __future__ import annotations

import structlog

from suffixsvc import wire
from suffixsvc.errors import ServiceUnavailableError, SuffixError
from suffixsvc.v1 import types_pb2

log = structlog.get_logger(__name__)


def as_suffix_error(error: Exception, where: str) -> SuffixError:
    """Return a typed error as it is; any other exception is a defect: logged, and hidden from the client."""
    if isinstance(error, SuffixError):
        return error
    log.error("defect", where=where, exc_info=error)
    return SuffixError(
        "internal error of the service", remedy="The service's log has the traceback; please report it."
    )


def error_detail(error: Exception, where: str) -> types_pb2.ErrorDetail:
    """The wire form of an exception."""
    return wire.detail_from_error(as_suffix_error(error, where))


def shutting_down_error(remedy: str) -> ServiceUnavailableError:
    """The error for what a draining service refuses."""
    return ServiceUnavailableError("the service is shutting down", remedy=remedy)
