"""Namespaces with min_principals at a real service: what principals without the right to follow get."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suffixsvc import SuffixCache
from suffixsvc.access.policy_file import read_policy_file
from suffixsvc.core.segments import Segment
from suffixsvc.errors import UnknownSegmentError
from suffixsvc.log_wire import position_to_proto
from suffixsvc.selection import Selection
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc
from suffixsvc.v1.watch_pb2 import FetchSegmentRequest, FollowNamespace, WatchHello, WatchRequest
from suffixsvc_client import SuffixClient
from suffixsvc_follower import FollowerConfig, connect
from suffixsvc_follower.session import FollowerSession
from support.access import ControlledService
from support.runs_oracle import shared_substrings
from support.serving import eventually

MATCH = 8
PRINCIPALS = ("alice", "bob", "carol")
POLICY = f"""
[namespaces."pool"]
min_principals = 2
match = {MATCH}
publish_every = 1

[principals."*"]
read = ["pool"]
write = ["pool"]
"""
OPEN = POLICY.replace("min_principals = 2", "min_principals = 0")
SHARED = list(range(100, 130))
OF_ALICE = list(range(200, 230))
LIVE = list(range(300, 330))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    access = ControlledService(tmp_path, PRINCIPALS, POLICY)
    policies = read_policy_file(access.policy_path).policies
    with SuffixCache(tmp_path / "data", policies=policies) as cache, access.run(cache) as service:
        yield service
        cache.check()


def write(service: ControlledService, principal: str, tokens: Sequence[int], path: str = "pool") -> int:
    with service.client(principal) as client:
        return client.namespace(path).add_output(tokens)


def drafted(session: Any, context: Sequence[int]) -> list[int]:
    session.step(list(context[:-1]), max_draft_tokens=0)
    draft = session.step([context[-1]], max_draft_tokens=40, verify_cost=0.0)
    return [int(token) for token in draft.token_ids]


def reads(
    service: ControlledService, principal: str, context: Sequence[int], path: str = "pool", at: str = ""
) -> list[int]:
    with service.client(principal) as client:
        named = [path] if at else None
        session = client.namespace(at or path).open_session([1, 2, 3], reads=named, private=True)
        found = drafted(session, context)
        session.close(commit=False)
        return found


def test_only_what_two_principals_wrote_is_drafted_to_a_third(service: ControlledService) -> None:
    write(service, "alice", [*OF_ALICE, *SHARED])
    assert reads(service, "carol", OF_ALICE[:5]) == []
    write(service, "bob", SHARED)
    eventually(lambda: reads(service, "carol", SHARED[:5])[:8] == SHARED[5:13], "the run is published")
    assert reads(service, "carol", SHARED[:5], at="carol/own")[:8] == SHARED[5:13], "also by reads"
    assert reads(service, "carol", OF_ALICE[:5]) == []
    assert reads(service, "alice", OF_ALICE[:5]) == [], "nor to its writer: it has no full grant"


def test_live_text_of_another_principal_is_not_drafted(service: ControlledService) -> None:
    with service.client("alice") as alice, service.client("carol") as carol:
        writing = alice.namespace("pool").open_session([1, 2, 3])
        writing.step(OF_ALICE)
        reading = carol.namespace("pool").open_session([1, 2, 3])
        assert drafted(reading, OF_ALICE[:5]) == []
        assert drafted(reading, [50, OF_ALICE[0]])[:3] == OF_ALICE[1:4], "its own text is"
        for session in (writing, reading):
            session.close(commit=False)


def test_each_principal_writes_below_and_reads_above(service: ControlledService) -> None:
    service.set_policy(
        POLICY.replace('write = ["pool"]', "")
        + "".join(f'[principals."{name}"]\nadmin = ["pool/{name}"]\n' for name in PRINCIPALS)
    )
    write(service, "alice", [*SHARED, *OF_ALICE], "pool/alice")
    write(service, "bob", [*SHARED, 7], "pool/bob")
    assert reads(service, "alice", OF_ALICE[:5], "pool/alice")[:10] == OF_ALICE[5:15], "its own, in full"
    eventually(
        lambda: reads(service, "carol", SHARED[:5], at="pool/carol")[:8] == SHARED[5:13],
        "the run is published",
    )
    assert reads(service, "carol", OF_ALICE[:5], at="pool/carol") == []
    assert reads(service, "carol", SHARED[:5], "pool/alice") == [], "its runs have one principal"


def test_the_policy_is_applied_to_live_sessions(service: ControlledService) -> None:
    service.set_policy(OPEN)
    write(service, "alice", OF_ALICE)
    with service.client("carol") as client:
        session = client.namespace("pool").open_session([1, 2, 3])
        assert drafted(session, OF_ALICE[:5])[:10] == OF_ALICE[5:15]
        service.set_policy(POLICY)
        assert drafted(session, [50, *OF_ALICE[10:15]]) == [], "the hot index is lost"
        service.set_policy(POLICY + '[principals."carol"]\nfollow = ["pool"]\n')
        assert drafted(session, [51, *OF_ALICE[10:15]])[:5] == OF_ALICE[15:20], "a full grant gives it back"
        service.set_policy(POLICY)
        assert drafted(session, [52, *OF_ALICE[16:19]]) == []
        service.set_policy(OPEN)
        assert drafted(session, [53, *OF_ALICE[21:24]])[:5] == OF_ALICE[24:29]
        session.close(commit=False)


def test_a_deletion_is_applied_before_its_receipt(service: ControlledService) -> None:
    write(service, "alice", SHARED)
    write(service, "bob", SHARED)
    with service.client("carol") as client:
        session = client.namespace("pool").open_session([1, 2, 3])
        eventually(lambda: reads(service, "carol", SHARED[:5])[:8] == SHARED[5:13], "the run is published")
        assert drafted(session, SHARED[:5])[:8] == SHARED[5:13]
        deletion = service.cache.delete(Selection(principal="bob"), from_disk=True)
        assert deletion.outputs == 1
        assert not {*drafted(session, [50, *SHARED[:5]])} & {*SHARED[5:]}
        assert reads(service, "carol", SHARED[:5]) == []
        session.close(commit=False)


def test_statistics_without_a_full_grant_are_those_of_the_runs(service: ControlledService) -> None:
    write(service, "alice", SHARED)
    write(service, "bob", SHARED)
    eventually(lambda: reads(service, "carol", SHARED[:5])[:8] == SHARED[5:13], "the run is published")
    request = pb.GetStatsRequest(namespace="pool")
    with service.client("carol") as client:
        shown = client.namespace("pool").stats()
        assert (shown.min_principals, shown.published_runs, shown.published_tokens) == (2, 1, len(SHARED))
        assert shown.last_published > 0
        caller = service.access._caller("carol", "token x")
        fields = {field.name for field, _ in service.server.handlers.get_stats(request, caller).ListFields()}
        assert fields == {"min_principals", "published_runs", "published_tokens", "last_published"}
        [listed] = [each for each in client.namespaces() if each.path == "pool"]
        assert listed.path == "pool"
        info = pb.ListNamespacesRequest(prefix="pool")
        [entry] = service.server.handlers.list_namespaces(info, caller).namespaces
        assert (entry.outputs, entry.tokens, entry.num_steps) == (0, 0, 0)
    tasks = service.cache.background_tasks()
    assert tasks["publish"].last_success > 0


def test_a_namespace_that_every_session_reads_is_restricted_as_well(tmp_path: Path) -> None:
    """Sessions read the namespaces of --preload, and every principal may follow them, unless ..."""
    access = ControlledService(
        tmp_path, PRINCIPALS, '[namespaces."pool"]\nmin_principals = 2\n[principals]\n'
    )
    policies = read_policy_file(access.policy_path).policies
    with SuffixCache(policies=policies) as cache:
        cache.namespace("pool", "tok").add_output(OF_ALICE)
        cache.read_by_default(["pool"])
        with access.run(cache) as service, service.client("carol") as client:
            session = client.namespace("carol/own", "tok").open_session([1, 2, 3])
            assert drafted(session, OF_ALICE[:5]) == []
            service.set_policy("[principals]\n")
            assert drafted(session, [50, *OF_ALICE[:5]])[:10] == OF_ALICE[5:15]
            session.close(commit=False)


@pytest.fixture
def follower(service: ControlledService, tmp_path: Path) -> Iterator[Any]:
    """Of carol, which has no right to follow."""
    config = FollowerConfig(client=service.config("carol"), segment_cache=tmp_path / "fetched")
    with connect(service.address, ["pool"], config=config) as backend:
        yield backend


def followed(backend: Any, context: Sequence[int]) -> list[int]:
    """What a session in this process drafts after a context."""
    session = backend.namespace("pool").open_session([1, 2, 3], private=True)
    assert isinstance(session, FollowerSession), "its steps would be calls"
    found = drafted(session, context)
    session.close(commit=False)
    return found


def copied(folder: Path, tokens: Sequence[int]) -> bool:
    """Whether a fetched segment holds tokens."""
    for file in folder.rglob("*.seg"):
        outputs = Segment(file).query(np.array(tokens[:4], np.int32), [4], 1, np.array(tokens[4:5], np.int32))
        if any(level[0] == 4 and sum(level[5]) for level in outputs):
            return True
    return False


def test_a_follower_without_the_right_gets_published_runs_only(
    service: ControlledService, follower: Any, tmp_path: Path
) -> None:
    assert follower.namespace("pool").wait(60)
    write(service, "alice", [*OF_ALICE, *SHARED])
    write(service, "bob", SHARED)
    with service.client("alice") as alice:
        writing = alice.namespace("pool").open_session([1, 2, 3])
        writing.step(LIVE)
        eventually(lambda: followed(follower, SHARED[:5])[:8] == SHARED[5:13], "the run has arrived")
        assert followed(follower, OF_ALICE[:5]) == []
        assert followed(follower, LIVE[:5]) == []
        assert follower.live_text("pool") == {}
        writing.close(commit=False)
    assert copied(tmp_path / "fetched", SHARED)
    assert not copied(tmp_path / "fetched", OF_ALICE)
    assert follower.followed("pool").copy.outputs() == {1 << 62}, "one run, no output"


def test_what_a_follower_without_the_right_writes_is_stored_and_not_held(
    service: ControlledService, follower: Any
) -> None:
    assert follower.namespace("pool").wait(60)
    with follower.namespace("pool").open_session([1, 2, 3]) as session:
        assert isinstance(session, FollowerSession)
        session.step(OF_ALICE)
    assert service.cache.namespace("pool").stats().outputs == 1
    assert followed(follower, OF_ALICE[:5]) == []


def test_a_deletion_is_acknowledged_when_the_follower_has_dropped_the_runs(
    service: ControlledService, follower: Any, tmp_path: Path
) -> None:
    write(service, "alice", SHARED)
    write(service, "bob", SHARED)
    eventually(lambda: followed(follower, SHARED[:5])[:8] == SHARED[5:13], "the run has arrived")
    service.set_policy(POLICY + '[principals."bob"]\nadmin = ["pool"]\n')
    with service.client("bob") as bob:

        def acknowledged() -> bool:
            write(service, "bob", SHARED)
            receipt = bob.namespace("pool").delete(principal="bob").receipt
            seen = {*followed(follower, SHARED[:5])}
            assert not (receipt.acknowledged and seen & {*SHARED[5:]}), "it has said that it dropped them"
            return bool(receipt.acknowledged)

        eventually(acknowledged, "the follower has answered in time")
    assert not copied(tmp_path / "fetched", SHARED)


def test_a_follower_gains_and_loses_the_right(
    service: ControlledService, follower: Any, tmp_path: Path
) -> None:
    write(service, "alice", OF_ALICE)
    assert follower.namespace("pool").wait(60)
    assert followed(follower, OF_ALICE[:5]) == []
    service.set_policy(POLICY + '[principals."carol"]\nfollow = ["pool"]\n')
    eventually(lambda: followed(follower, OF_ALICE[:5])[:8] == OF_ALICE[5:13], "all of it has arrived")
    service.set_policy(POLICY)
    eventually(lambda: followed(follower, OF_ALICE[:5]) == [], "it is dropped")
    entry = follower.followed("pool")
    eventually(lambda: entry.refused is None and entry.ready.is_set(), "it gets published runs")
    assert entry.copy.outputs() == set()
    assert followed(follower, OF_ALICE[:5]) == []
    assert not copied(tmp_path / "fetched", OF_ALICE)


def test_fetching_takes_the_name_of_the_published_file(service: ControlledService) -> None:
    """Segments of the namespace itself are refused, whatever their names are."""
    write(service, "alice", OF_ALICE)
    write(service, "bob", [*OF_ALICE, *SHARED])
    service.cache.seal("pool")
    [record] = service.cache.feed.segments("pool")
    caller = service.access._caller("carol", "token x")
    with pytest.raises(UnknownSegmentError):
        service.server.handlers.fetch_segment(FetchSegmentRequest(namespace="pool", name=record.name), caller)


def test_the_wire_has_no_other_text_of_the_namespace(service: ControlledService) -> None:
    """A client that asks for the namespace as one that holds its contents would."""
    write(service, "alice", [*OF_ALICE, *SHARED])
    service.cache.seal("pool")
    write(service, "alice", OF_ALICE)
    generation = service.cache.feed.generation("pool")
    with service.client("carol") as carol, service.client("alice") as alice:
        transport: Any = carol.runner.transport
        with transport._channels.use() as held:
            stub = suffix_cache_pb2_grpc.SuffixCacheStub(held.channel)
            position = position_to_proto(service.cache.feed.position())
            asked: queue.SimpleQueue[WatchRequest | None] = queue.SimpleQueue()
            asked.put(WatchRequest(hello=WatchHello(protocol=1, follower_id="f", position=position)))
            asked.put(WatchRequest(follow=FollowNamespace(namespace="pool", generation=generation)))
            metadata = transport.identity.credential().metadata
            replies: Any = stub.Watch(iter(asked.get, None), metadata=metadata)
            writing = alice.namespace("pool").open_session([1, 2, 3])
            writing.step(LIVE)
            received, published = b"", 0
            for reply in replies:
                data = reply.SerializeToString()
                received += data
                kind = reply.WhichOneof("reply")
                assert kind in ("welcome", "contents", "outputs", "live", "changes"), kind
                if kind == "outputs":
                    assert not reply.outputs.outputs
                if kind == "contents":
                    published = len(reply.contents.sealed.segments)
                    if not published:
                        write(service, "bob", SHARED)
                if published and kind == "live":
                    break
            replies.cancel()
            asked.put(None)
            writing.close(commit=False)
    assert service.cache.feed.segments("pool")[0].name.encode() not in received
    for text in (OF_ALICE, LIVE, SHARED):
        assert np.array(text[:3], "<i4").tobytes() not in received


#: a writer, and the parts of common texts that its output consists of
OUTPUT = st.tuples(
    st.sampled_from(PRINCIPALS),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 24)), min_size=1, max_size=3),
)


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlledService]:
    access = ControlledService(tmp_path_factory.mktemp("isolation"), PRINCIPALS, POLICY)
    policies = read_policy_file(access.policy_path).policies
    with SuffixCache(policies=policies, background=False) as cache, access.run(cache) as service:
        yield service


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(OUTPUT, min_size=2, max_size=8), st.integers(2, 3))
def test_no_token_that_too_few_principals_wrote(
    shared_service: ControlledService, outputs: list[tuple[str, list[tuple[int, int, int]]]], k: int
) -> None:
    """A drafted token is in the reader's own text, or in a run of at least k principals."""
    service = shared_service
    service.set_policy(POLICY.replace("min_principals = 2", f"min_principals = {k}"))
    texts: list[tuple[str, list[int]]] = []
    for name, parts in outputs:
        # tokens of a common text are those of its number; what is between the parts is the writer's own
        text: list[int] = []
        for number, first, size in parts:
            text += [1000 * (number + 1) + n for n in range(first, first + size)]
            text.append(9000 + len(texts))
        texts.append((name, text))
        service.cache.namespace("pool").add_output(text, principal=name)
    try:
        service.cache.publish()
        shared = shared_substrings(texts, k, MATCH)
        permitted = {token for run in shared for token in run}
        pairs = {pair for run in shared for pair in itertools.pairwise(run)}
        for name in PRINCIPALS:
            with service.client(name) as client:
                _read_all(client, texts, permitted, pairs)
    finally:
        service.cache.delete(Selection(namespace="pool"))
        service.cache.publish()


def _read_all(
    client: SuffixClient,
    texts: list[tuple[str, list[int]]],
    permitted: set[int],
    pairs: set[tuple[int, int]],
) -> None:
    """Guess every text at every position."""
    for _, text in texts:
        session = client.namespace("pool").open_session([1, 2, 3], private=True)
        own: list[int] = [1, 2, 3]
        for at in range(0, len(text), 3):
            guess = text[at : at + 3]
            own += guess
            draft = session.step(guess, max_draft_tokens=16, verify_cost=0.0)
            own_pairs = set(itertools.pairwise(own))
            before = own[-1]
            for token, match in zip(draft.token_ids.tolist(), draft.match_lens.tolist(), strict=True):
                assert token in permitted or token in own, (before, token)
                # Behind a run's end the session's own most frequent token follows, whatever is before it.
                joined = (before, token) in pairs or (before, token) in own_pairs
                assert joined or (match == 0 and token in own), (before, token)
                before = token
        session.close(commit=False)
