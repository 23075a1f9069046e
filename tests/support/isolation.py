"""A service with namespaces of several principals, and a check that no token leaves them without a grant.

Every namespace holds tokens of a range of its own; every principal reads in every way there is, and each
token that comes back is traced to the namespace it was written to. One principal wrote them, so that a
namespace with ``min_principals`` publishes none of them.
"""

from __future__ import annotations

import contextlib
import io
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from suffixsvc import SuffixCache, wire
from suffixsvc.access.grants import Grant, Grants
from suffixsvc.access.principals import EVERY, Right
from suffixsvc.errors import PermissionDeniedError, SuffixError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc.v1 import suffix_cache_pb2_grpc, watch_pb2
from suffixsvc_client import SuffixClient
from support.access import ControlledService
from support.idle_calls import connection
from support.serving import PATIENCE_S
from support.watching import hello

__all__ = ["GRANTS", "RESTRICTED", "check_isolation", "isolated_service"]

PRINCIPALS = ("alice", "bob", "carol")
PATHS = ("alice/x", "bob/x", "bob/y", "shared/a", "shared/a/b", "other")
PREFIXES = ("alice", "bob", "bob/y", "shared", "shared/a", "other", EVERY)
GRANTS = st.lists(
    st.builds(
        Grant,
        st.sampled_from((*PRINCIPALS, EVERY)),
        st.sampled_from([Right.READ, Right.WRITE, Right.FOLLOW]),
        st.sampled_from(PREFIXES),
    ),
    max_size=5,
)
#: paths that the policy gives ``min_principals``
RESTRICTED = st.sets(st.sampled_from([prefix for prefix in PREFIXES if prefix != EVERY]), max_size=3)
#: tokens of one namespace; those of different ones differ
SIZE = 40


def tokens_of(path: str) -> list[int]:
    """The output that a namespace holds."""
    first = 1000 * (1 + PATHS.index(path))
    return list(range(first, first + SIZE))


def live_tokens_of(path: str) -> list[int]:
    """What a session of the namespace has written that is not closed."""
    return [500 + token for token in tokens_of(path)]


def policy_of(grants: list[Grant], restricted: set[str]) -> str:
    """The policy file of some grants, and of paths with ``min_principals``."""
    lines = [f'[namespaces."{path}"]\nmin_principals = 2' for path in sorted(restricted)]
    lines.append("[principals]")
    for name in sorted({grant.principal for grant in grants}):
        lines.append(f'[principals."{name}"]')
        for right in Right:
            paths = sorted({g.path for g in grants if (g.principal, g.right) == (name, right)})
            if paths:
                lines.append(f"{right.value} = [{', '.join(repr(path) for path in paths)}]")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def isolated_service(folder: Path) -> Iterator[ControlledService]:
    """A service whose namespaces have their tokens, stored and live, without a policy."""
    with SuffixCache() as cache:
        live = []
        for path in PATHS:
            cache.namespace(path).add_output(tokens_of(path), [1, 2, 3])
            live.append(cache.namespace(path).open_session([1, 2, 3]))
            live[-1].step(live_tokens_of(path))
        with ControlledService(folder, PRINCIPALS).run(cache) as service:
            yield service
        for session in live:
            session.close(commit=False)


def check_isolation(service: ControlledService, grants: list[Grant], restricted: set[str]) -> int:
    """Apply grants, read as every principal in every way, and compare with what the grants say.

    Returns: the number of namespaces that a principal tried to read without a right.
    """
    service.set_policy(policy_of(grants, restricted))
    oracle = Grants(grants)
    denied = 0
    for name in PRINCIPALS:
        with service.client(name) as client:
            followed = _followed(service, name)
            for path in PATHS:
                rights = oracle.rights(name, path)
                publishes = any(f"{path}/".startswith(f"{above}/") for above in restricted)
                readable = {path} if (Right.FOLLOW if publishes else Right.READ) in rights else set()
                denied += not readable
                assert _origins(_drafted(client, path, f"{name}/own", tokens_of(path))) == readable
                assert _origins(_drafted(client, path, f"{name}/own", live_tokens_of(path))) == readable
                copied = {path} if Right.FOLLOW in rights else set()
                assert _origins(_exported(client, path)) == copied, (name, path)
                assert _origins(followed.get(path, set())) == copied, (name, path)
                assert _permitted(client.namespace(path).stats) is (Right.READ in rights), (name, path)
                if Right.ADMIN not in rights:
                    delete = client.namespace(path).delete
                    assert not _permitted(lambda delete=delete: delete(output_ids=[1]))
            listed = {record.path for record in client.namespaces()} & set(PATHS)
            assert listed == {path for path in PATHS if oracle.rights(name, path)}
    return denied


def _origins(tokens: set[int]) -> set[str]:
    """The namespaces that tokens were written to; others than theirs are those of the guess."""
    of_path = {token: path for path in PATHS for token in (*tokens_of(path), *live_tokens_of(path))}
    return {of_path[token] for token in tokens if token in of_path}


def _permitted(call: Callable[[], object]) -> bool:
    try:
        call()
    except PermissionDeniedError:
        return False
    return True


def _followed(service: ControlledService, name: str) -> dict[str, set[int]]:
    """Tokens by namespace of the contents that a follower is sent."""
    requests: queue.SimpleQueue[watch_pb2.WatchRequest | None] = queue.SimpleQueue()
    requests.put(hello())
    for path in PATHS:
        requests.put(watch_pb2.WatchRequest(follow=watch_pb2.FollowNamespace(namespace=path)))
    found: dict[str, set[int]] = {}
    waiting = set(PATHS)
    with connection(service.address) as channel:
        metadata = ClientIdentity(token=service.tokens[name]).credential().metadata
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        call: Any = stub.Watch(iter(requests.get, None), metadata=metadata, timeout=PATIENCE_S)
        while waiting:
            reply = next(call)
            match reply.WhichOneof("reply"):
                case "refused":
                    waiting.discard(reply.refused.namespace)
                case "outputs":
                    tokens = found.setdefault(reply.outputs.namespace, set())
                    for each in reply.outputs.outputs:
                        tokens |= set(wire.unpack_tokens(each.token_ids).tolist())
                    if reply.outputs.last:
                        waiting.discard(reply.outputs.namespace)
                case "live":
                    found.setdefault(reply.live.namespace, set()).update(
                        token
                        for piece in reply.live.pieces
                        for token in wire.unpack_tokens(piece.output).tolist()
                    )
        requests.put(None)
        call.cancel()
    return found


def _drafted(client: SuffixClient, path: str, own: str, guess: list[int]) -> set[int]:
    """Tokens that come back when a text of a namespace is guessed exactly."""
    found: set[int] = set()
    attempts: list[dict[str, Any]] = [{"reads": None, "at": path}, {"reads": [path], "at": own}]
    for attempt in attempts:
        try:
            session = client.namespace(attempt["at"]).open_session(
                [1, 2, 3], reads=attempt["reads"], private=True
            )
        except PermissionDeniedError:
            continue
        for part in (guess[:5], guess[5:30]):
            found |= set(session.step(part, max_draft_tokens=16).token_ids.tolist())
        session.close(commit=False)
    return found


def _exported(client: SuffixClient, path: str) -> set[int]:
    sink = io.BytesIO()
    try:
        client.namespace(path).export_ngrams([RecordFile(order=2, slots=4)], [sink])
    except SuffixError:
        return set()
    return set(np.frombuffer(sink.getvalue()[: len(sink.getvalue()) // 4 * 4], "<i4").tolist())
