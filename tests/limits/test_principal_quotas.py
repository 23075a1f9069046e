"""Quotas of principals over all namespaces together, compared with a list of outputs by their use."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from limits_testing import output, text

from suffixsvc import Limits, NewOutput, Policies, Policy, PrincipalQuota, Selection, SuffixCache
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.access.policy_file import read_policy_file
from suffixsvc.errors import InvalidConfigError, LimitExceededError, StoreError
from suffixsvc.index.output_size import OutputSize, charge_of, size_of
from suffixsvc.policies import UNLIMITED
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from support.engine_parts import parts_of
from support.forking import ForkServer

KIB = 1 << 10
PATHS = ["a", "a/b", "shared", "pinned"]
NAMES = ["a", "m", "free", ""]
NAMESPACES = {"pinned": Policy(pinned=True)}


def of(path: str, seed: int, tokens: int, principal: str, *, corpus: bool = False) -> NewOutput:
    return replace(output(path, seed, tokens, corpus=corpus), principal=principal)


def policies(**quotas: PrincipalQuota) -> Policies:
    return Policies(NAMESPACES, principals=quotas)


@dataclass
class Stored:
    """An output as the oracle knows it."""

    output_id: int
    path: str
    principal: str
    tokens: int
    seed: int
    corpus: bool
    by_session: bool = False

    @property
    def pinned(self) -> bool:
        return self.corpus or self.path == "pinned"

    @property
    def charge(self) -> int:
        if self.by_session:  # after a prompt of one token, without labels
            return charge_of(OutputSize(1, self.tokens, 1, 0))
        return charge_of(size_of(of(self.path, self.seed, self.tokens, self.principal)))


class QuotaMachine(RuleBasedStateMachine):
    """All outputs, the least recently used first."""

    durable = False

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp()) if self.durable else None
        self.kept: list[Stored] = []
        self.seed = 0
        self.quotas = {
            "a": PrincipalQuota(max_bytes=60 * KIB, max_outputs=40),
            "m": PrincipalQuota(max_outputs=6),
        }
        self.open()

    def open(self) -> None:
        data = None if self.folder is None else self.folder / "data"
        limits = Limits(seal_tokens=500)
        self.cache = SuffixCache(data, limits=limits, policies=policies(**self.quotas), background=False)
        for path in PATHS:
            self.cache.namespace(path).put_note("here", b"")

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check()
            self.cache.close()
            if self.folder is not None:
                shutil.rmtree(self.folder)

    def own(self, principal: str) -> list[Stored]:
        return [each for each in self.kept if each.principal == principal]

    def evict_in_oracle(self, principal: str, caused: list[Stored]) -> None:
        quota = self.quotas.get(principal)
        if quota is None:
            return
        own = self.own(principal)
        pinned = [each for each in own if each.pinned]
        more_bytes = more_outputs = 0
        held, most = sum(each.charge for each in own), quota.max_bytes
        if most is not None and held > most:
            lowest = sum(each.charge for each in pinned) + sum(each.charge for each in caused)
            more_bytes = held - min(most, max(int(most * 0.95), lowest))
        if quota.max_outputs is not None and len(own) > quota.max_outputs:
            lowest = len(pinned) + len(caused)
            more_outputs = len(own) - min(quota.max_outputs, max(int(quota.max_outputs * 0.95), lowest))
        for each in own:
            if more_bytes <= 0 and more_outputs <= 0:
                return
            if not each.pinned:
                self.kept.remove(each)
                more_bytes -= each.charge
                more_outputs -= 1

    def fits(self, principal: str, new: list[Stored]) -> bool:
        quota = self.quotas.get(principal, PrincipalQuota())
        pinned = [each for each in self.own(principal) if each.pinned]
        size = sum(each.charge for each in [*pinned, *new])
        return size <= (quota.max_bytes or UNLIMITED) and len(pinned) + len(new) <= (
            quota.max_outputs or UNLIMITED
        )

    def note(self) -> None:
        for index in parts_of(self.cache).catalog.stored():
            parts_of(self.cache).quotas.evictor.note_drafts(index)

    @rule(
        path=st.sampled_from(PATHS),
        principal=st.sampled_from(NAMES),
        count=st.integers(1, 4),
        tokens=st.integers(1, 250),
        corpus=st.integers(0, 9).map(lambda n: n == 0),
    )
    def add(self, path: str, principal: str, count: int, tokens: int, corpus: bool) -> None:
        corpus = corpus and len([each for each in self.own(principal) if each.pinned]) < 4
        if path == "pinned" and len([each for each in self.own(principal) if each.pinned]) >= 4:
            return
        new = []
        for _ in range(count):
            self.seed += 1
            new.append(Stored(0, path, principal, tokens, self.seed, corpus))
        outputs = [of(path, each.seed, tokens, principal, corpus=corpus) for each in new]
        expected = self.fits(principal, new)
        if not expected:
            with pytest.raises(LimitExceededError, match=f"principal '{principal}'") as caught:
                self.cache.namespace(path).add_outputs(outputs)
            assert caught.value.remedy
            return
        ids = self.cache.namespace(path).add_outputs(outputs)
        for each, output_id in zip(new, ids, strict=True):
            each.output_id = output_id
        self.kept += new
        self.evict_in_oracle(principal, new)

    @rule(path=st.sampled_from(PATHS[:3]), principal=st.sampled_from(NAMES), tokens=st.integers(1, 250))
    def session(self, path: str, principal: str, tokens: int) -> None:
        self.seed += 1
        new = Stored(0, path, principal, tokens, self.seed, corpus=False, by_session=True)
        try:
            session = self.cache.namespace(path).open_session([1], principal=principal)
        except LimitExceededError:
            assert principal in self.quotas
            return
        for first in range(0, tokens, 16):
            session.step(text(self.seed, tokens)[first : first + 16], 0)
        output_id = session.close()
        if output_id is None:
            # the session's memory counts until it is closed
            quota = self.quotas[principal]
            pinned = sum(each.charge for each in self.own(principal) if each.pinned)
            most = quota.max_bytes or UNLIMITED
            assert not self.fits(principal, [new]) or pinned + new.charge + 400 * tokens + 16 * KIB > most
            return
        new.output_id = output_id
        self.kept.append(new)
        self.evict_in_oracle(principal, [new])

    @rule(which=st.integers(0, 60), reader=st.sampled_from(PATHS[:3]))
    def draft(self, which: int, reader: str) -> None:
        if not self.kept:
            return
        each = self.kept[which % len(self.kept)]
        reads = [each.path] if reader != each.path else None
        session = self.cache.namespace(reader).open_session([1], reads=reads, principal="free", private=True)
        drafted = session.step(text(each.seed, each.tokens)[:16], 16, 0.001)
        session.close(commit=False)
        self.note()
        if len(drafted):
            self.kept.remove(each)
            self.kept.append(each)

    @rule(which=st.integers(0, 60))
    def delete(self, which: int) -> None:
        if self.kept:
            each = self.kept.pop(which % len(self.kept))
            self.cache.namespace(each.path).delete(output_ids=[each.output_id])

    @rule(principal=st.sampled_from(NAMES[:3]))
    def delete_all_of(self, principal: str) -> None:
        self.cache.delete(Selection(principal=principal))
        self.kept = [each for each in self.kept if each.principal != principal]

    @rule(path=st.sampled_from(PATHS))
    def delete_namespace(self, path: str) -> None:
        self.cache.delete_namespace(path)
        self.cache.namespace(path).put_note("here", b"")
        self.kept = [each for each in self.kept if each.path != path]

    @rule(principal=st.sampled_from(["a", "m"]), size=st.integers(20, 80), outputs=st.integers(4, 12))
    def change_quota(self, principal: str, size: int, outputs: int) -> None:
        self.quotas[principal] = PrincipalQuota(max_bytes=size * KIB, max_outputs=outputs)
        self.cache.set_policies(policies(**self.quotas))
        self.cache.evict()
        for name in self.quotas:
            self.evict_in_oracle(name, [])

    @rule(path=st.sampled_from(PATHS))
    def seal(self, path: str) -> None:
        if self.durable:
            self.cache.seal(path)

    @rule()
    def restart(self) -> None:
        if self.durable:
            self.cache.close()
            self.open()

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "cache"):
            return
        stored = {each.output_id: each.output for each in parts_of(self.cache).store.scan()}
        assert set(stored) == {each.output_id for each in self.kept}
        held = self.cache.principal_stats()
        assert set(held) <= set(self.quotas)
        for name in self.quotas:
            own = self.own(name)
            if not own:
                continue
            assert held[name].outputs == len(own)
            assert held[name].held_bytes == sum(each.charge for each in own)
            assert held[name].sessions == held[name].session_bytes == 0
            assert held[name].limit_outputs == self.quotas[name].max_outputs


class DurableQuotaMachine(QuotaMachine):
    durable = True


QuotaMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
DurableQuotaMachine.TestCase.settings = settings(
    max_examples=10, stateful_step_count=40, deadline=None, phases=[Phase.generate, Phase.reuse]
)
TestQuotas = QuotaMachine.TestCase
TestDurableQuotas = DurableQuotaMachine.TestCase


def test_every_principal_without_a_quota_of_its_own_has_that_of_all_others() -> None:
    every = policies(**{"*": PrincipalQuota(1000, 10), "big": PrincipalQuota(UNLIMITED)})
    assert every.quota_of("someone") == PrincipalQuota(1000, 10)
    assert every.quota_of("big") == PrincipalQuota(UNLIMITED, 10)
    assert every.quota_of("") == PrincipalQuota(), "the operator has none"
    with SuffixCache(policies=every) as cache:
        with pytest.raises(LimitExceededError, match="max_bytes") as caught:
            cache.namespace("x").add_outputs([of("x", 1, 30, "someone")])
        assert str(caught.value.expected).startswith("at most 1000 bytes")
        assert str(charge_of(size_of(of("x", 1, 30, "someone")))) in str(caught.value.got)
        cache.namespace("x").add_outputs([of("x", 1, 30, "big"), of("x", 2, 500, "")])
        with pytest.raises(LimitExceededError, match="max_outputs"):
            cache.namespace("x").add_outputs([of("x", n, 3, "big") for n in range(11)])
        assert cache.principal_stats()["big"].refused == 1


def test_live_sessions_count_and_displace_outputs_of_their_principal_only() -> None:
    quota = PrincipalQuota(max_bytes=280 * KIB)
    with SuffixCache(policies=policies(a=quota)) as cache:
        theirs = cache.namespace("x").add_outputs([of("x", n, 200, "m") for n in range(5)])
        cache.namespace("x").add_outputs([of("x", 100 + n, 500, "a") for n in range(5)])
        session = cache.namespace("y").open_session(text(1, 1000), principal="a")
        assert cache.principal_stats()["a"].sessions == 1
        before = cache.principal_stats()["a"]
        assert before.outputs == 5
        grown = cache.namespace("y").open_session(text(2, 1000), principal="a")
        now = cache.principal_stats()["a"]
        assert now.outputs < 5
        assert now.held_bytes + now.session_bytes <= 280 * KIB
        with pytest.raises(LimitExceededError, match="1000000 tokens of a session of the principal 'a'"):
            cache.namespace("y").open_session(text(3, 1_000_000), principal="a")
        with pytest.raises(LimitExceededError, match="principal 'a'"):
            session.append_context(text(4, 100_000))
        left = {each.output_id for each in parts_of(cache).store.scan()}
        assert set(theirs) <= left, "outputs of others stay"
        assert cache.namespace("y").open_session(text(3, 100_000), principal="m").close() is None
        session.close(commit=False)
        grown.close(commit=False)
        assert cache.principal_stats()["a"].sessions == 0


def test_a_close_at_the_quota_counts_its_session_once() -> None:
    """Regression: the live text, which takes more memory than the output is charged, was counted besides the
    output, so that of four sessions at the quota the first close lost its output."""
    with SuffixCache() as cache:
        namespace = cache.namespace("x")
        sessions = [namespace.open_session([1], principal="a") for _ in range(4)]
        for number, session in enumerate(sessions):
            session.step(text(number, 500), 0)
        size = cache.namespace("x").stats().session_bytes - 1
        cache.set_policies(policies(a=PrincipalQuota(max_bytes=size)))
        assert sessions[0].close() is not None
        for session in sessions[1:]:
            session.close()
        stats = cache.principal_stats()["a"]
        assert stats.held_bytes <= size
        assert stats.outputs == 4


def test_a_principal_displaces_as_much_of_others_as_its_quota_in_a_full_namespace() -> None:
    """However much it writes: at its quota it displaces its own outputs."""
    quota = PrincipalQuota(max_bytes=60 * KIB)
    assert quota.max_bytes
    shared = Policies({"x": Policy(max_bytes=400 * KIB)}, principals={"a": quota})
    with SuffixCache(policies=shared) as cache:
        namespace = cache.namespace("x")
        for seed in range(100):
            namespace.add_outputs([of("x", seed, 100, "m")])
        full = namespace.stats()
        assert full.evicted_outputs
        for seed in range(1000, 1200):
            namespace.add_outputs([of("x", seed, 100, "a")])
        stats = cache.principal_stats(["a", "m"])
        assert stats["a"].evicted_outputs > 150
        lost = full.outputs - stats["m"].outputs
        held_at_most = quota.max_bytes // charge_of(size_of(of("x", 1, 100, "a")))
        print(full.outputs, lost, held_at_most)
        assert lost <= 2 * held_at_most  # eviction goes down to the low watermark


@pytest.mark.parametrize("limited", [True, False])
def test_the_statistics_of_a_service_do_not_need_a_log_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    """Regression: while the disk failed, they raised the store's error instead of telling it."""
    given = policies(a=PrincipalQuota(max_outputs=5)) if limited else None
    with SuffixCache(tmp_path / "d", background=False) as cache:
        cache.namespace("x").add_outputs([of("x", 1, 20, "a")])

    def failing(*_: object) -> None:
        raise StoreError("LMDB failed while reading")

    with SuffixCache(tmp_path / "d", background=False, policies=given) as cache:
        handlers = Handlers(cache, Limits(), durable=True)
        with monkeypatch.context() as patch:
            patch.setattr(type(parts_of(cache).store), "outline", failing)
            reply = handlers.get_stats(pb.GetStatsRequest(), OPERATOR_CALLER)
        assert reply.outputs == 1
        assert not reply.principals
        reply = handlers.get_stats(pb.GetStatsRequest(), OPERATOR_CALLER)
        assert [each.principal for each in reply.principals] == (["a"] if limited else [])


def test_what_others_write_into_a_namespace_changes_no_charge() -> None:
    with SuffixCache(policies=policies(a=PrincipalQuota(max_bytes=100 * KIB))) as cache:
        cache.namespace("x").add_outputs([of("x", 1, 200, "a")])
        before = cache.principal_stats()["a"]
        cache.namespace("x").add_outputs([of("x", 100 + n, 2000, "m") for n in range(20)])
        assert cache.principal_stats()["a"] == before


def test_concurrent_writes_deletions_and_sessions_end_within_the_quotas(tmp_path: Path) -> None:
    quotas = {"a": PrincipalQuota(max_bytes=150 * KIB), "m": PrincipalQuota(max_outputs=30)}
    failures: list[BaseException] = []
    kept: list[int] = []
    with SuffixCache(tmp_path / "d", policies=policies(**quotas), limits=Limits(seal_tokens=2000)) as cache:

        def work(number: int) -> None:
            rng = random.Random(number)
            try:
                for turn in range(40):
                    principal = rng.choice(["a", "m", "free"])
                    path = rng.choice(PATHS[:3])
                    seed = number * 1000 + turn
                    ids = cache.namespace(path).add_outputs(
                        [of(path, seed, rng.randrange(1, 200), principal) for _ in range(rng.randrange(1, 4))]
                    )
                    if principal == "free":
                        kept.extend(ids)
                    elif rng.random() < 0.2:
                        cache.namespace(path).delete(output_ids=ids[:1])
                    if rng.random() < 0.3:
                        with cache.namespace(path).open_session([1], principal=principal) as session:
                            session.step(text(seed, 40)[:30], 0)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        compare(cache, quotas)
        assert set(kept) <= {each.output_id for each in parts_of(cache).store.scan()}
    with SuffixCache(tmp_path / "d", policies=policies(**quotas), background=False) as cache:
        compare(cache, quotas)


def compare(cache: SuffixCache, quotas: dict[str, PrincipalQuota]) -> None:
    """The counts are those of the log, and within the quotas."""
    cache.evict()
    outputs: Counter[str] = Counter()
    charges: Counter[str] = Counter()
    for stored in parts_of(cache).store.scan():
        outputs[stored.output.principal] += 1
        charges[stored.output.principal] += charge_of(size_of(stored.output))
    held = cache.principal_stats(quotas)
    for name, quota in quotas.items():
        assert (held[name].outputs, held[name].held_bytes) == (outputs[name], charges[name])
        assert held[name].held_bytes <= (quota.max_bytes or UNLIMITED)
        assert held[name].outputs <= (quota.max_outputs or UNLIMITED)
    cache.check()


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    house = ForkServer(Path(__file__).with_name("quota_child.py"))
    yield house
    house.close()


@pytest.mark.crash
def test_counts_are_those_of_the_log_after_kills(fork_server: ForkServer, tmp_path: Path) -> None:
    from quota_child import QUOTAS

    rng = random.Random(5)
    promised: set[int] = set()
    acknowledged = 0

    def hear(line: str) -> None:
        nonlocal acknowledged
        kind, *ids = line.split()
        acknowledged += 1
        if kind == "free":
            promised.update(map(int, ids))

    for life in range(8):
        order = {"folder": str(tmp_path / "data"), "seed": life}
        assert fork_server.run(order, hear, rng.uniform(0.2, 0.6)) == -signal.SIGKILL
        with SuffixCache(tmp_path / "data", policies=policies(**QUOTAS), background=False) as cache:
            compare(cache, QUOTAS)
            assert promised <= {each.output_id for each in parts_of(cache).store.scan()}
    assert acknowledged or not promised


def test_outputs_of_before_principals_are_the_operators(tmp_path: Path) -> None:
    """Records of version 1 and 2 without a principal count for no quota."""
    with SuffixCache(tmp_path / "d") as cache:
        cache.namespace("x").add_outputs([of("x", n, 50, "") for n in range(3)])
    every = policies(**{"*": PrincipalQuota(max_outputs=1)})
    with SuffixCache(tmp_path / "d", policies=every) as cache:
        cache.namespace("x").add_outputs([of("x", 10, 50, "")])
        assert cache.principal_stats() == {}
        assert cache.namespace("x").stats().outputs == 4


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("max_bytes = 0", "max_bytes must be"),
        ('max_bytes = "many"', "max_bytes must be"),
        ("max_outputs = 0", "max_outputs must be"),
        ("max_outputs = 1.5", "max_outputs"),
    ],
)
def test_an_invalid_quota_is_refused_by_name(tmp_path: Path, table: str, named: str) -> None:
    file = tmp_path / "p.toml"
    file.write_text(f'[principals."a"]\n{table}\n')
    with pytest.raises(InvalidConfigError, match=named):
        read_policy_file(file)


def test_quotas_of_a_policy_file(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        '[principals."a"]\nmax_bytes = "1 GiB"\n[principals."*"]\nmax_bytes = 1000\nmax_outputs = 5\n'
        '[principals."b"]\nmax_bytes = "unlimited"\n'
    )
    read = read_policy_file(file).policies
    assert read.quota_of("a") == PrincipalQuota(1 << 30, 5)
    assert read.quota_of("b") == PrincipalQuota(UNLIMITED, 5)
    assert read.quota_of("c") == PrincipalQuota(1000, 5)
    assert read.has_quotas


def test_a_deletion_while_earlier_outputs_are_counted_is_not_lost(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d") as cache:
        ids = cache.namespace("x").add_outputs([of("x", n, 20, "a") for n in range(200)])
    quotas = {"a": PrincipalQuota(max_outputs=1000)}
    with SuffixCache(tmp_path / "d", policies=policies(**quotas), background=False) as cache:
        store = parts_of(cache).store
        outline = store.outline
        deleted = ids[::2]

        def slow(namespace: str) -> Iterator[object]:
            rows = list(outline(namespace))  # read before they are deleted
            with contextlib.suppress(StopIteration):
                cache.namespace("x").delete(output_ids=deleted)
            yield from rows

        store.outline = slow  # type: ignore[method-assign,assignment]
        assert cache.principal_stats(["a"])["a"].outputs == 100
        assert np.array_equal(sorted(set(ids) - set(deleted)), [e.output_id for e in store.scan()])
