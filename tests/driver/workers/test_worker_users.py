"""A draft worker whose unix socket other users of the machine can open: real processes of those users."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from suffixsvc.access.control import AccessControl
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc as rpc
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.server.engine import DraftEngine
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer, WorkerEdge, WorkerSettings
from support.serving import PATIENCE_S, socket_dir
from support.user_process import UserProcess

ALICE, MALLORY = 54001, 54003
DRAFT = """
from suffixsvc.errors import SuffixError
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
with DraftWorkerClient(address) as client:
    try:
        client.describe(300.0)
        session = client.open_session(p_min=0.0)
        session.set_text(list(range(70, 90)))
        tell(len(session.draft(3, 300.0)))
    except SuffixError as error:
        tell(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def address(tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    policy = tmp_path / "policies.toml"
    policy.write_text(f'[principals."alice"]\nuids = [{ALICE}]\n')
    settings = ContextSettings(
        context_size=512, slots=4, threads=1, max_width=1, flash_attention=False, kv_type="f32"
    )
    with socket_dir() as folder:
        folder.chmod(0o755)
        engine = DraftEngine(tiny_model, settings)
        edge = WorkerEdge(AccessControl(policy=policy, socket_mode=0o666))
        busy = WorkerSettings(busy_after_seconds=PATIENCE_S)
        server = DraftWorkerServer(engine, f"unix:{folder}/w", busy, edge)
        server.start()
        try:
            yield server.address
        finally:
            server.stop()
            engine.close()


def test_users_draft_as_their_principals(address: str) -> None:
    with UserProcess(ALICE, DRAFT, address=address) as process:
        assert process.hear() == 3
    with UserProcess(MALLORY, DRAFT, address=address) as process:
        refused = process.hear()
    assert refused.startswith("UnauthenticatedError")
    assert f"user id {MALLORY}" in refused
    with DraftWorkerClient(address) as own:  # of the worker's own user
        session = own.open_session(p_min=0.0)
        session.set_text(list(range(70, 90)))
        assert len(session.draft(3, PATIENCE_S)) == 3


def test_a_call_without_a_ticket_is_refused(address: str) -> None:
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        rpc.DraftWorkerStub(channel).Describe(pb.DescribeRequest(), timeout=PATIENCE_S)
    error: grpc.Call = caught.value  # type: ignore[assignment] # it is one
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
