"""The clock record: the state of :mod:`suffixsvc.clock` across a restart.

It is written with the counters in every commit, and periodically in a commit without other changes.
"""

from __future__ import annotations

import struct
from typing import Final

import lmdb
import structlog

from suffixsvc.clock import ClockReading, StoreClock
from suffixsvc.store.records.framing import (
    CHECKSUM,
    RECORD_VERSION,
    append_checksum,
    open_record,
    require_length,
    require_no_flags,
)
from suffixsvc.store.records.output_records import decode_log

__all__ = ["CLOCK_KEY", "decode_clock", "encode_clock", "load_clock", "report_gap"]

log = structlog.get_logger(__name__)

#: its key in the database "meta"
CLOCK_KEY: Final = b"clock"
_CLOCK = struct.Struct("<4sHHQQ")
#: a wall clock that went back by more was set while the folder was closed
_BEHIND_SECONDS: Final = 1.0


def encode_clock(reading: ClockReading) -> bytes:
    """Encode the clock record."""
    return append_checksum(_CLOCK.pack(b"SXCK", RECORD_VERSION, 0, reading.time_us, reading.wall_us))


def decode_clock(raw: bytes) -> ClockReading:
    """Decode the clock record; StoreCorruptError."""
    where = "clock record"
    flags, time_us, wall_us = open_record(raw, _CLOCK, b"SXCK", where)
    require_length(raw, _CLOCK.size + CHECKSUM.size, where)
    require_no_flags(where, flags)
    return ClockReading(time_us, wall_us)


def load_clock(
    txn: lmdb.Transaction[bytes], meta: lmdb._Database, log: lmdb._Database
) -> ClockReading | None:
    """Read the clock record, or derive a reading from the newest output if an old release wrote the folder.

    Returns:
        The reading; None if there is neither record nor output.
    """
    raw = txn.get(CLOCK_KEY, db=meta)
    if raw is not None:
        return decode_clock(raw)
    with txn.cursor(db=log) as cursor:
        if not cursor.last():
            return None
        written_us = decode_log(cursor.value(), int.from_bytes(cursor.key(), "big")).written_us
    return ClockReading(written_us, written_us)


def report_gap(clock: StoreClock, folder: str, has_grace_outputs: bool) -> None:
    """Log movements of the wall clock while the folder was closed that affect expiry.

    Args:
        has_grace_outputs: whether outputs are retained only because of the grace period.
    """
    moved = clock.moved_seconds
    if moved < -_BEHIND_SECONDS:
        log.warning("the wall clock was set back while the folder was closed", folder=folder, seconds=-moved)
    elif has_grace_outputs:
        log.warning(
            "outputs that expired while the folder was closed are retained for a grace period",
            folder=folder,
            closed_seconds=round(moved, 3),
            grace_seconds=round(clock.grace_seconds, 3),
        )
