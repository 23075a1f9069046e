"""The charge of outputs: at least what their rows hold, the same after a restart, whatever is in the row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc import Limits, NewOutput, Policies, Policy, PrincipalQuota, SuffixCache, config
from suffixsvc.config import MAX_LABELS_BYTES, labels_size, validate_labels
from suffixsvc.errors import InvalidLabelsError
from suffixsvc.index.output_size import OutputSize, charge_of, log_bytes, size_of
from suffixsvc.store.records.keys import PayloadKey
from suffixsvc.store.records.log_records import (
    LogRecord,
    Payload,
    encode_log,
    encode_payload,
    outline_of,
)
from support.engine_parts import parts_of

KIB = 1 << 10
#: labels of about the largest size
LARGE = {f"{n}" + "\U0001f601" * 62: "\U0001f600" * 50 for n in range(9)}

labels = st.dictionaries(
    st.text("aé\U0001f600", min_size=1, max_size=64), st.text("aé\U0001f600"), max_size=16
)


def written(
    path: str,
    seed: int,
    tokens: int,
    *,
    tail: int = 0,
    principal: str = "a",
    labels: dict[str, str] | None = None,
) -> NewOutput:
    rng = np.random.default_rng(seed)
    return NewOutput(
        path,
        rng.integers(0, 1 << 20, tokens).astype(np.int32),
        (tokens,),
        rng.integers(0, 1 << 20, tail).astype(np.int32),
        labels=labels or {},
        principal=principal,
    )


@settings(max_examples=100, deadline=None)
@given(
    runs=st.lists(st.integers(1, 3), min_size=1, max_size=200),
    tail=st.integers(0, 64),
    labels=labels.filter(lambda given: labels_size(given) <= MAX_LABELS_BYTES),
    session_id=st.text("aé", max_size=100),
)
def test_the_charge_is_at_least_the_bytes_of_the_row(
    runs: list[int], tail: int, labels: dict[str, str], session_id: str
) -> None:
    output = replace(
        written("x", 1, sum(runs), tail=tail, labels=validate_labels(labels)),
        segment_lens=tuple(runs),
        session_id=session_id,
    )
    key = PayloadKey(7, bytes(16), 1)
    fields = (42, key, sum(runs), 10**15, 60, True, True, output.prompt_tail, dict(labels))
    row = encode_log(LogRecord(*fields, bytes(range(16)), 3, 9, session_id))
    content = Payload(output.token_ids, output.segment_lens).content()
    size = size_of(output)
    assert charge_of(size) >= len(row) + len(encode_payload(key, sum(runs), content))
    # the lengths of runs besides: they are with the text, which sealed outputs are not read for
    assert log_bytes(size) + 4 * len(runs) >= len(row) + len(encode_payload(key, sum(runs), content))
    head = outline_of(row, 42)
    assert size == OutputSize(1, head.tokens, head.tail_tokens, head.attribute_bytes)


def test_labels_have_a_limit_of_bytes() -> None:
    assert MAX_LABELS_BYTES - 500 < labels_size(LARGE) <= MAX_LABELS_BYTES
    assert validate_labels(LARGE) == LARGE
    with SuffixCache() as cache:
        namespace = cache.namespace("x")
        for more in ({"a": "b" * 256, "c": "d" * 256}, {str(n): "é" * 200 for n in range(5)}):
            with pytest.raises(
                InvalidLabelsError, match=f"at most {MAX_LABELS_BYTES} bytes together"
            ) as caught:
                namespace.add_outputs([written("x", 1, 3, labels=LARGE | more)])
            assert caught.value.got == f"{labels_size(LARGE | more)} bytes"
            assert caught.value.remedy
            with pytest.raises(InvalidLabelsError):
                namespace.open_session([1], labels=LARGE | more)
        assert namespace.stats().outputs == 0


def test_outputs_of_a_release_without_that_limit_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = LARGE | {f"{n}": "\U0001f600" * 256 for n in range(7)}
    limits = Limits(max_cache_bytes=1 << 30)
    with SuffixCache(tmp_path / "d", limits=limits, background=False) as cache:
        with monkeypatch.context() as patch:
            patch.setattr(config, "MAX_LABELS_BYTES", 1 << 20)
            [kept] = cache.namespace("x").add_outputs([written("x", 1, 40, labels=more)])
        held = cache.namespace("x").stats().held_bytes
        assert held > 2 * labels_size(more) > 2 * MAX_LABELS_BYTES
    with SuffixCache(tmp_path / "d", limits=limits, background=False) as cache:
        assert cache.namespace("x").stats().held_bytes == held
        assert dict(parts_of(cache).store.get(kept).output.labels) == more
        cache.seal()
        cache.check()
        assert cache.namespace("x").delete(labels={"0": more["0"]}).outputs == 1
        assert cache.namespace("x").stats().held_bytes == 0


@pytest.mark.parametrize("policy", [Policy(max_bytes=1 << 30), Policy(max_bytes=1 << 30, pinned=True)])
def test_charges_are_the_same_after_a_restart_and_0_after_a_deletion(tmp_path: Path, policy: Policy) -> None:
    policies = Policies({"x": policy}, principals={"a": PrincipalQuota(max_bytes=1 << 30)})
    attributes = {"agent": "é" * 100, "task": "t"}
    outputs = [
        written("x", n, 1 + n % 5, tail=n % 65, labels=attributes if n % 2 else None) for n in range(200)
    ]
    total = OutputSize()
    for each in outputs:
        total = total.plus(size_of(each))
    with SuffixCache(tmp_path / "d", policies=policies, background=False) as cache:
        namespace = cache.namespace("x")
        ids = namespace.add_outputs(outputs[:150])
        hot = namespace.stats().held_bytes
        assert hot > log_bytes(total) * 150 / 200 / 2
        cache.seal()
        ids += namespace.add_outputs(outputs[150:])
        held, charged = namespace.stats().held_bytes, cache.principal_stats()["a"]
        assert held > log_bytes(total)
        assert charged.held_bytes == charge_of(total)
    for _ in range(2):
        with SuffixCache(tmp_path / "d", policies=policies, background=False) as cache:
            assert cache.namespace("x").stats().held_bytes == held
            assert cache.principal_stats() == {"a": charged}
            assert cache.stats().held_bytes == held
    with SuffixCache(tmp_path / "d", policies=policies, background=False) as cache:
        cache.namespace("x").delete(output_ids=ids)
        assert cache.namespace("x").stats().held_bytes == 0
        assert cache.principal_stats(["a"])["a"].held_bytes == 0
        assert parts_of(cache).quotas.usage.used == 0


@pytest.mark.parametrize(
    ("tail", "attributes"), [(0, LARGE), (64, {}), (0, {"a": "b" * 256}), (0, {}), (64, {"a": "b" * 256})]
)
def test_a_quota_bounds_the_log_whatever_the_rows_hold(
    tmp_path: Path, tail: int, attributes: dict[str, str]
) -> None:
    """Regression: labels and prompt tails were not charged, so that a principal within its quota filled the
    store for all."""
    quota = 512 * KIB
    policies = Policies(principals={"a": PrincipalQuota(max_bytes=quota)})
    limits = Limits(max_store_bytes=8 * quota)
    with SuffixCache(tmp_path / "d", policies=policies, limits=limits, background=False) as cache:
        namespace = cache.namespace("x")
        for first in range(0, 1500, 50):
            namespace.add_outputs(
                [
                    written("x", first + n, 1, tail=tail, labels=attributes and attributes | {"n": str(n)})
                    for n in range(50)
                ]
            )
        stats, held = cache.stats(), cache.principal_stats()["a"]
        assert held.evicted_outputs > 100
        assert held.held_bytes <= quota
        assert stats.index_bytes < 2 * quota
        rows = sum(log_bytes(size_of(each.output)) for each in parts_of(cache).store.scan())
        assert rows <= min(held.held_bytes, stats.held_bytes)
        assert cache.namespace("other").add_outputs([written("other", 1, 1000, principal="m")])
