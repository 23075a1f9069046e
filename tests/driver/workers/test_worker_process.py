"""The process of a draft worker: its socket, its ready file, its signals."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suffixsvc.errors import (
    ServiceUnavailableError,
)
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.server.engine import DraftEngine
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer
from support.targets import talkative_prompt

SETTINGS = ContextSettings(
    context_size=512, slots=2, threads=1, max_width=1, flash_attention=False, kv_type="f32"
)
PATIENT = 300.0


def test_an_address_without_a_listener(socket_path: str) -> None:
    with DraftWorkerClient(f"unix:{socket_path}") as client:
        with pytest.raises(ServiceUnavailableError, match="suffixsvc draft-worker"):
            client.describe(timeout_seconds=0.3)
        session = client.open_session()
        session.set_text([1, 2])
        assert len(session.draft(3, 1.0)) == 0
        assert len(session.draft(3, 1.0)) == 0
        session.close()


def test_the_socket_is_the_owners_alone(tiny_model: Path, socket_path: str) -> None:
    """The service's socket had this mode from its first moment; the draft worker's had what the umask left,
    so that every user of the machine could read the texts of others."""
    before = os.umask(0)
    try:
        engine = DraftEngine(tiny_model, SETTINGS)
        server = DraftWorkerServer(engine, f"unix:{socket_path}")
        try:
            assert stat.S_IMODE(os.stat(socket_path).st_mode) == 0o600
            assert os.umask(0) == 0, "only while the socket is made"
        finally:
            server.stop()
            engine.close()
    finally:
        os.umask(before)


@pytest.mark.crash
def test_the_draft_worker_command(tiny_model: Path, socket_path: str, tmp_path: Path) -> None:
    """The process: ready file, drafts, killed during a generation, no files left after SIGTERM."""
    ready = tmp_path / "ready.json"
    command = [
        sys.executable, "-m", "suffixsvc_cli", "draft-worker", "--model", str(tiny_model),
        "--listen", f"unix:{socket_path}", "--context", "512", "--ready-file", str(ready),
        "--batch", "2", "--queue", "2", "--busy-after-ms", "2000", "--drivers", "3",
    ]  # fmt: skip

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command)
        deadline = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None, process.returncode
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process

    process = start()
    announced = json.loads(ready.read_text())
    assert announced["pid"] == process.pid
    with LlamaTarget(
        tiny_model, ContextSettings(512, threads=1, flash_attention=False, kv_type="f32")
    ) as target:
        prompt = talkative_prompt(target, 60)
        plain = generate(target, prompt, max_tokens=60)
        with DraftWorkerClient(announced["addresses"][0]) as client:
            layer = DraftModelLayer(client, target.model.vocabulary, p_min=0.0, timeout_seconds=1.0)

            def kill_early(_step: object) -> None:
                if process.poll() is None and layer.session.late == 0:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()

            result = generate(
                target,
                prompt,
                DriverConfig(policy="first-match", k_start=4, k_max=4),
                [layer],
                max_tokens=60,
                curve=CostCurve.linear(0.05, 32),
                on_step=kill_early,
            )
            layer.close()
    assert result.token_ids == plain.token_ids
    assert result.stats.accepted > 0
    ready.unlink()
    process = start()  # over the stale socket file of the killed one
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 0
    assert not ready.exists()
    assert not Path(socket_path).exists()
