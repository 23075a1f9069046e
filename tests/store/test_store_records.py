"""Records: golden files, round trips, and detection of all damage."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_testing import GOLDEN as GOLDEN_FOLDERS
from store_testing import Clock, golden_folder, make_output, plain_stored

from suffixsvc.errors import StoreCorruptError
from suffixsvc.store import LmdbStore
from suffixsvc.store.records import keys, log_records, table_records
from suffixsvc.store.records.framing import append_checksum
from suffixsvc.types import NamespaceRecord

GOLDEN = GOLDEN_FOLDERS / "v1"

DIGEST = bytes(range(16))
KEY = keys.PayloadKey(7, DIGEST, 1)


def ids(*values: int) -> Any:
    return np.asarray(values, dtype=np.int32)


LOG = log_records.LogRecord(
    lsn=42,
    payload=KEY,
    token_count=5,
    written_us=1_700_000_000_250_000,
    ttl_seconds=3600,
    incomplete=True,
    corpus=False,
    prompt_tail=ids(11, 12, 2**31 - 1),
    labels={"agent": "sql-writer", "session": "ñ-1"},
)
PAYLOAD = log_records.Payload(ids(0, 1, 2, 151_935, 2**31 - 1), (2, 3))
NAMESPACE = table_records.NamespaceRow(7, "acme/qwen2.5-coder/sql-agent", "xxh3:0123456789abcdef")
COUNTERS = table_records.Counters(last_lsn=42, last_namespace_id=7, outputs=3, payloads=2, tokens=15, txn=9)

#: name -> (encoded record, its decoder)
RECORDS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "schema": (table_records.encode_schema(1, 1_700_000_000_250_000), table_records.decode_schema),
    "counters": (table_records.encode_counters(COUNTERS), table_records.decode_counters),
    "namespace": (
        table_records.encode_namespace(NAMESPACE),
        lambda raw: table_records.decode_namespace(raw, NAMESPACE.path.encode()),
    ),
    "log": (log_records.encode_log(LOG), lambda raw: log_records.decode_log(raw, 42)),
    "payload": (
        log_records.encode_payload(KEY, len(PAYLOAD.token_ids), PAYLOAD.content()),
        lambda raw: log_records.decode_payload(raw, KEY),
    ),
    "refs": (log_records.encode_refs(KEY, 3), lambda raw: log_records.decode_refs(raw, KEY)),
    "state": (
        table_records.encode_state(7, "mixer", b"\x00weights\xff"),
        lambda raw: table_records.decode_state(raw, keys.state_key(7, "mixer")),
    ),
    "log_key": (keys.log_key(42), bytes),
    "by_namespace_key": (keys.namespace_row_key(7, 42), bytes),
    "expiry_key": (keys.expiry_key(1_700_003_600_250_000, 42), bytes),
    "payload_key": (keys.payload_key(KEY), bytes),
    "state_key": (keys.state_key(7, "mixer"), bytes),
    "content_hash": (log_records.content_hash(PAYLOAD.content()), bytes),
}
SEALED = [
    name for name in RECORDS if name in {"schema", "counters", "namespace", "log", "payload", "refs", "state"}
]


@pytest.mark.parametrize("name", RECORDS)
def test_bytes_are_those_of_the_golden_file(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    assert RECORDS[name][0].hex(" ", 8) == golden.hex(" ", 8)


def test_golden_files_read_back() -> None:
    decoded = {name: RECORDS[name][1](bytes.fromhex((GOLDEN / f"{name}.hex").read_text())) for name in SEALED}
    assert decoded["schema"] == (1, 1_700_000_000_250_000, False)
    assert decoded["counters"] == COUNTERS
    assert decoded["namespace"] == NAMESPACE
    assert fields(decoded["log"]) == fields(LOG)
    assert decoded["payload"].token_ids.tolist() == PAYLOAD.token_ids.tolist()
    assert decoded["payload"].segment_lens == PAYLOAD.segment_lens
    assert decoded["refs"] == 3
    assert decoded["state"] == b"\x00weights\xff"


def fields(record: log_records.LogRecord) -> list[Any]:
    values = [getattr(record, name) for name in log_records.LogRecord.__slots__]
    return [v.tolist() if isinstance(v, np.ndarray) else v for v in values]


@pytest.mark.parametrize("name", SEALED)
def test_every_changed_byte_is_noticed(name: str) -> None:
    raw, decode = RECORDS[name]
    for at in range(len(raw)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(raw)
            damaged[at] ^= flip
            with pytest.raises(StoreCorruptError):
                decode(bytes(damaged))


@pytest.mark.parametrize("name", SEALED)
def test_every_truncation_and_extension_is_noticed(name: str) -> None:
    raw, decode = RECORDS[name]
    for length in range(len(raw)):
        with pytest.raises(StoreCorruptError):
            decode(raw[:length])
    for more in (b"\0", b"\0" * 8, raw):
        with pytest.raises(StoreCorruptError):
            decode(raw + more)


@pytest.mark.parametrize("name", SEALED)
def test_an_error_names_the_record_and_the_remedy(name: str) -> None:
    raw, decode = RECORDS[name]
    with pytest.raises(StoreCorruptError) as caught:
        decode(raw[:-1])
    kind = {"refs": "reference count"}.get(name, name)
    assert kind in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("decode", "why"),
    [
        (lambda: log_records.decode_log(RECORDS["log"][0], 43), "LSN"),
        (lambda: log_records.decode_payload(RECORDS["payload"][0], keys.PayloadKey(8, DIGEST, 1)), "payload"),
        (lambda: log_records.decode_refs(RECORDS["refs"][0], keys.PayloadKey(7, DIGEST, 0)), "payload"),
        (lambda: table_records.decode_namespace(RECORDS["namespace"][0], b"other"), "path"),
        (
            lambda: table_records.decode_state(RECORDS["state"][0], keys.state_key(8, "mixer")),
            "namespace",
        ),
        (
            lambda: table_records.decode_state(RECORDS["state"][0], keys.state_key(7, "tables")),
            "name",
        ),
    ],
)
def test_a_record_under_another_key_is_noticed(decode: Callable[[], Any], why: str) -> None:
    """A valid record under a wrong key is damage, too."""
    with pytest.raises(StoreCorruptError, match=why):
        decode()


@given(st.binary(max_size=200))
def test_garbage_never_decodes(raw: bytes) -> None:
    for name in SEALED:
        with pytest.raises(StoreCorruptError):
            RECORDS[name][1](raw)


@given(st.data())
def test_garbage_with_a_valid_checksum_never_crashes_a_decoder(data: st.DataObject) -> None:
    """Lengths are validated also if the checksum is valid."""
    name = data.draw(st.sampled_from(SEALED))
    raw, decode = RECORDS[name]
    body = bytearray(raw[:-8])
    for at in data.draw(st.lists(st.integers(6, len(body) - 1), min_size=1, max_size=8)):
        body[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(StoreCorruptError):
        decode(append_checksum(bytes(body)))


tokens = st.integers(0, 2**31 - 1)


@given(
    st.builds(
        log_records.LogRecord,
        lsn=st.integers(1, 2**64 - 1),
        payload=st.builds(
            keys.PayloadKey,
            st.integers(1, 2**32 - 1),
            st.binary(min_size=16, max_size=16),
            st.integers(0, 2**32 - 1),
        ),
        token_count=st.integers(1, 2**32 - 1),
        written_us=st.integers(0, 2**63),
        ttl_seconds=st.integers(0, 2**32 - 1),
        incomplete=st.booleans(),
        corpus=st.booleans(),
        prompt_tail=st.lists(tokens, max_size=64).map(lambda values: ids(*values)),
        labels=st.dictionaries(st.text(min_size=1, max_size=64), st.text(max_size=256), max_size=16),
    )
)
def test_log_records_round_trip(record: log_records.LogRecord) -> None:
    assert fields(log_records.decode_log(log_records.encode_log(record), record.lsn)) == fields(record)


@given(st.lists(st.lists(tokens, min_size=1, max_size=20), min_size=1, max_size=8))
def test_payloads_round_trip(runs: list[list[int]]) -> None:
    payload = log_records.Payload(ids(*itertools.chain(*runs)), tuple(map(len, runs)))
    key = keys.PayloadKey(1, log_records.content_hash(payload.content()), 0)
    back = log_records.decode_payload(
        log_records.encode_payload(key, len(payload.token_ids), payload.content()), key
    )
    assert back.content() == payload.content()
    assert not back.token_ids.flags.writeable


def test_contents_that_differ_only_in_their_segments_differ() -> None:
    one, two = log_records.Payload(ids(1, 2, 3), (3,)), log_records.Payload(ids(1, 2, 3), (1, 2))
    assert log_records.content_hash(one.content()) != log_records.content_hash(two.content())


def test_the_worked_example_of_the_documentation_is_the_golden_file() -> None:
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    (example,) = re.findall(r"```hex\n(.*?)```", text, re.DOTALL)
    columns = [line.split("   ")[0] for line in example.splitlines()]
    assert bytes.fromhex(" ".join(columns)) == RECORDS["log"][0]


def fill_golden_folder(folder: Path) -> list[Any]:
    """Rows of the golden folder."""
    clock = Clock()
    store = LmdbStore(folder, clock=clock, map_bytes_initial=256 << 10)
    store.add_namespace(NamespaceRecord("acme/a", "xxh3:0123456789abcdef"))
    store.add_namespace(NamespaceRecord("acme/b"))
    first = make_output(
        range(40), namespace="acme/a", segments=(10, 30), tail=(7, 8), labels={"agent": "sql"}
    )
    store.append([first, make_output([5, 6], namespace="acme/b", ttl_seconds=60), first]).result()
    store.append([make_output([9], namespace="acme/b", incomplete=True, corpus=True)]).result()
    store.forget_many("acme/a", [1])
    store.put_state("acme/a", "mixer", b"\x01\x02")
    rows = [plain_stored(stored) for stored in store.scan()]
    store.close()
    return rows


def test_a_folder_written_by_schema_1_opens(tmp_path: Path) -> None:
    """A whole data file of the first release."""
    expected = fill_golden_folder(tmp_path / "now")
    store = LmdbStore(golden_folder("v1", tmp_path / "old"), migrate=True)
    assert [plain_stored(stored) for stored in store.scan()] == expected
    assert store.get_state("acme/a", "mixer") == b"\x01\x02"
    assert store.namespaces()[0].tokenizer == "xxh3:0123456789abcdef"
    assert store.append([make_output([1], namespace="acme/a")]).result() == [5]
    store.check()
    store.close()


if __name__ == "__main__":  # writes the golden files of records; data.mdb.gz is of an old release
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for record_name, (record_bytes, _) in RECORDS.items():
        rows_of_16 = [record_bytes[at : at + 16].hex(" ", 4) for at in range(0, len(record_bytes), 16)]
        (GOLDEN / f"{record_name}.hex").write_text("\n".join(rows_of_16) + "\n")
