"""A service that is killed while it publishes: it comes back with the runs, and without what was deleted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc.access.tokens import TokenFile
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc_client import ClientConfig, SuffixClient
from support.serving import ServeProcess, eventually, socket_dir

POLICY = """
[namespaces."pool"]
min_principals = 2
match = 8
publish_every = 1

[principals."*"]
read = ["pool"]

[principals."alice"]
admin = ["pool/alice"]

[principals."bob"]
admin = ["pool/bob"]
"""
PRINCIPALS = ("alice", "bob", "carol")
KEPT = list(range(100, 140))
DELETED = list(range(200, 240))


def _holds(folder: Path, tokens: Sequence[int]) -> bool:
    """Whether a file of published runs has the ids of these tokens."""
    wanted = np.array(tokens, "<i4").tobytes()
    return any(wanted in file.read_bytes() for file in folder.glob("*.seg*"))


@pytest.mark.crash
def test_a_killed_service_publishes_again_what_was_not_deleted() -> None:
    with socket_dir() as folder:
        policies = folder / "policies.toml"
        policies.write_text(POLICY)
        tokens = TokenFile(folder / "tokens.toml")
        identities = {name: ClientIdentity(token=tokens.create(name)) for name in PRINCIPALS}
        options = "--policies", str(policies), "--tokens", str(folder / "tokens.toml")
        service = ServeProcess(folder, *options)

        def client(name: str) -> SuffixClient:
            patient: dict[str, Any] = {"step_timeout_s": 60.0, "open_timeout_s": 60.0, "call_timeout_s": 60.0}
            return SuffixClient(service.address, ClientConfig(identity=identities[name], **patient))

        def read(context: Sequence[int]) -> list[int]:
            with client("carol") as carol:
                session = carol.namespace("carol/own").open_session([1], reads=["pool"], private=True)
                draft = session.step(list(context), max_draft_tokens=8, verify_cost=0.0)
                session.close(commit=False)
                return [int(token) for token in draft.token_ids]

        with service.start():
            for name in ("alice", "bob"):
                with client(name) as writer:
                    writer.namespace(f"pool/{name}").add_output(KEPT)
            for round_ in range(3):
                for name in ("alice", "bob"):
                    with client(name) as writer:
                        writer.namespace(f"pool/{name}").add_output(DELETED, labels={"round": str(round_)})
                eventually(lambda: read(DELETED[:5]) == DELETED[5:13], "the run is published")
                with client("bob") as bob:
                    bob.namespace("pool/bob").delete(labels={"round": str(round_)})
                assert read(DELETED[:5]) == []
                time.sleep(0.2 * round_)  # at several moments of the build that follows
                service.kill()
                service.start()
                assert not _holds(folder / "data" / "published", DELETED)
                eventually(lambda: read(KEPT[:5]) == KEPT[5:13], "the other run is published again")
                assert read(DELETED[:5]) == []
                with client("alice") as alice:
                    assert alice.namespace("pool/alice").delete(labels={"round": str(round_)}).outputs == 1
