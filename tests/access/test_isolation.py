"""Isolation: over random policies and principals, no token reaches a principal without a grant.

Every principal writes tokens of a range of its own into random namespaces; then all of them read in every way
there is, and each token that comes back is traced to the namespaces it was written to.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suffixsvc import SuffixCache
from suffixsvc.access.grants import Grant, Grants
from suffixsvc.access.principals import EVERY, Right
from suffixsvc.errors import PermissionDeniedError, SuffixError
from suffixsvc.lookup_records import RecordFile
from suffixsvc_client import SuffixClient
from support.access import ControlledService

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
#: tokens of one namespace; those of different ones differ
SIZE = 40


def tokens_of(path: str) -> list[int]:
    first = 1000 * (1 + PATHS.index(path))
    return list(range(first, first + SIZE))


def policy_of(grants: list[Grant]) -> str:
    lines = ["[principals]"]
    for name in sorted({grant.principal for grant in grants}):
        lines.append(f'[principals."{name}"]')
        for right in Right:
            paths = sorted({g.path for g in grants if (g.principal, g.right) == (name, right)})
            if paths:
                lines.append(f"{right.value} = [{', '.join(repr(path) for path in paths)}]")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlledService]:
    folder: Path = tmp_path_factory.mktemp("isolation")
    with SuffixCache() as cache:
        for path in PATHS:
            cache.namespace(path).add_output(tokens_of(path), [1, 2, 3])
        with ControlledService(folder, PRINCIPALS).run(cache) as service:
            yield service


def _drafted(client: SuffixClient, path: str, own: str) -> set[int]:
    """Tokens that come back when the text of a namespace is guessed exactly."""
    found: set[int] = set()
    guess = tokens_of(path)
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


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(GRANTS)
def test_no_token_without_a_grant(service: ControlledService, grants: list[Grant]) -> None:
    service.set_policy(policy_of(grants))
    oracle = Grants(grants)
    of_path = {token: path for path in PATHS for token in tokens_of(path)}
    for name in PRINCIPALS:
        with service.client(name) as client:
            own = f"{name}/own"
            for path in PATHS:
                rights = oracle.rights(name, path)
                drafted = {of_path[t] for t in _drafted(client, path, own) if t in of_path}
                assert drafted == ({path} if Right.READ in rights else set()), (name, path)
                exported = {of_path[t] for t in _exported(client, path) if t in of_path}
                assert exported == ({path} if Right.FOLLOW in rights else set()), (name, path)
            listed = {record.path for record in client.namespaces()} & set(PATHS)
            assert listed == {path for path in PATHS if oracle.rights(name, path)}
