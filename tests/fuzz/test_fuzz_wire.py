"""The corpus of the wire fuzzer without the fuzzer: every input, and mutations of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.v1 import suffix_cache_pb2 as pb
from support.long_form import rounds
from support.wire_target import KINDS, Services, run_one, seeds

LINES = Path(__file__).with_name("wire_corpus.txt").read_text(encoding="ascii").split()
CORPUS = [*seeds(), *map(bytes.fromhex, LINES)]


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    services = Services()
    yield services
    services.close()


def test_the_corpus_reaches_every_decoder() -> None:
    assert len(LINES) > 100
    assert {data[0] % len(KINDS) for data in CORPUS} == set(range(len(KINDS)))


def test_every_input_is_answered_or_refused(services: Services) -> None:
    for data in CORPUS:
        run_one(data, services)


@given(st.sampled_from(CORPUS), st.randoms(use_true_random=False), st.integers(1, 4))
@settings(max_examples=rounds(150, full=500), deadline=None)
def test_mutated_inputs_are_answered_or_refused(
    services: Services, data: bytes, choice: random.Random, changes: int
) -> None:
    changed = bytearray(data)
    for _ in range(changes):
        changed[choice.randrange(len(changed))] = choice.randrange(256)
    run_one(bytes(changed), services)


def test_the_target_finds_a_defect(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that accepts a negative id is found: the checks of the target can fail."""
    monkeypatch.setattr("suffixsvc.wire.unpack_tokens", lambda data, name="": _unchecked(data))
    message = pb.AppendContextRequest(session_id="a", token_ids=b"\xff\xff\xff\xff")
    negative = bytes([[kind for kind, _ in KINDS].index(type(message))]) + message.SerializeToString()
    with pytest.raises(AssertionError):
        run_one(negative, services)


def _unchecked(data: bytes) -> object:
    return np.frombuffer(data, "<i4")
