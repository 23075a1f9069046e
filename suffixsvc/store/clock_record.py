"""The record of the store's clock: what :mod:`suffixsvc.clock` keeps across a restart.

It is written with every commit, beside the counters, and now and then without one.
"""

from __future__ import annotations

import struct
from typing import Final

import lmdb
import structlog

from suffixsvc.clock import ClockReading, StoreClock
from suffixsvc.store.framing import (
    CHECKSUM,
    RECORD_VERSION,
    open_record,
    require_length,
    require_no_flags,
    seal,
)
from suffixsvc.store.records import decode_log

__all__ = ["CLOCK_KEY", "decode_clock", "encode_clock", "load_clock", "report_gap"]

log = structlog.get_logger(__name__)

#: its key in the database "meta"
CLOCK_KEY: Final = b"clock"
_CLOCK = struct.Struct("<4sHHQQ")
#: a clock that is so much behind was set back while the folder was closed
_BEHIND_SECONDS: Final = 1.0


def encode_clock(reading: ClockReading) -> bytes:
    return seal(_CLOCK.pack(b"SXCK", RECORD_VERSION, 0, reading.time_us, reading.wall_us))


def decode_clock(raw: bytes) -> ClockReading:
    where = "clock record"
    flags, time_us, wall_us = open_record(raw, _CLOCK, b"SXCK", where)
    require_length(raw, _CLOCK.size + CHECKSUM.size, where)
    require_no_flags(where, flags)
    return ClockReading(time_us, wall_us)


def load_clock(
    txn: lmdb.Transaction[bytes], meta: lmdb._Database, log: lmdb._Database
) -> ClockReading | None:
    """What was kept last. A folder of a release that kept nothing was alive when its newest output was
    written; None: it has no output either."""
    raw = txn.get(CLOCK_KEY, db=meta)
    if raw is not None:
        return decode_clock(raw)
    with txn.cursor(db=log) as cursor:
        if not cursor.last():
            return None
        written_us = decode_log(cursor.value(), int.from_bytes(cursor.key(), "big")).written_us
    return ClockReading(written_us, written_us)


def report_gap(clock: StoreClock, folder: str, spared: bool) -> None:
    """Write to the log what the wall clock did while the folder was closed, where it matters to expiry.

    Args:
        spared: whether outputs stay only because of the grace period.
    """
    moved = clock.moved_seconds
    if moved < -_BEHIND_SECONDS:
        log.warning("the wall clock was set back while the folder was closed", folder=folder, seconds=-moved)
    elif spared:
        log.warning(
            "outputs that expired while the folder was closed stay for a grace period",
            folder=folder,
            closed_seconds=round(moved, 3),
            grace_seconds=round(clock.grace_seconds, 3),
        )
