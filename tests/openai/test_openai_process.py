"""``suffixsvc openai`` as a process: options, readiness, drain."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

import openai
import suffixsvc_cli as cli
from support.openai_process import client_at, process_of
from support.openai_serving import cycle_text, namespaces
from support.serving import PATIENCE_S, eventually


def test_a_signal_waits_for_running_answers_and_stores_them(cycle: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ("--data", str(data), "--parallel", "2", "--context", "4096", "--grace-seconds", "300")
    with process_of(cycle, tmp_path, *options) as (process, address), client_at(address) as client:
        texts = []
        begun = threading.Event()

        def ask() -> None:
            stream = client.completions.create(
                model="cycle", prompt="ab", max_tokens=2000, temperature=0, stream=True,
                extra_body={"suffixsvc": {"speculation": False}},
            )  # fmt: skip
            for chunk in stream:
                begun.set()
                texts.append(chunk.choices[0].text)

        thread = threading.Thread(target=ask)
        thread.start()
        assert begun.wait(PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        refused: list[httpx.Response] = []

        def draining() -> bool:
            refused[:] = [httpx.get(f"http://{address}/health")]
            return refused[0].status_code == 503

        eventually(draining, "the server drains")
        with pytest.raises(openai.InternalServerError) as stopping:
            client.completions.create(model="cycle", prompt="ab")
        assert stopping.value.status_code == 503
        assert stopping.value.response.headers["Retry-After"]
        thread.join()
        assert len("".join(texts)) == 2000
        assert process.wait(PATIENCE_S) == 0
        assert not (tmp_path / "ready.json").exists()
    assert list(namespaces(data).values()) == [1]
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert all(line["timestamp"] for line in logged)
    statuses = [line["status"] for line in logged if line["event"] == "request"]
    assert sorted(statuses) == [200, 503]


def test_after_the_grace_period_answers_are_cancelled_and_stored(cycle: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ("--data", str(data), "--context", "30000", "--parallel", "1", "--grace-seconds", "0")
    with process_of(cycle, tmp_path, *options) as (process, address), client_at(address) as client:
        stream = client.completions.create(
            model="cycle", prompt="ab", max_tokens=29_000, temperature=0, stream=True,
            extra_body={"suffixsvc": {"speculation": False}},
        )  # fmt: skip
        next(iter(stream))
        process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="the server is stopping"):
            list(stream)
        assert process.wait(PATIENCE_S) == 0
    assert list(namespaces(data).values()) == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--listen", "unix:/tmp/x"), "--listen must be HOST:PORT"),
        (("--listen", "0.0.0.0:0"), "--tokens FILE"),
        (("--port", "8000"), "--port must not be given; got 8000. Use --listen HOST:PORT."),
        (("--host", "0.0.0.0"), "Use --listen HOST:PORT."),
        (("--data", "d", "--cache", "unix:s"), "--data and --cache must not be given together"),
        (("--api-keys", "keys.toml"), "Use --tokens FILE"),
        (("--tls-cert", "none.pem"), "--tls-cert and --tls-key must be given together"),
        (("--policies", "none.toml"), "policies file"),
        (("--draft", "none.gguf"), "none.gguf"),
        (("--draft", "unix:"), "unix:"),
        (("--kv-type", "f64"), "kv_type must be"),
        (("--kv-type", "q8_0", "--no-flash-attention"), "flash_attention must not be false with kv_type"),
        (("--gpu-layers", "half"), "--gpu-layers must be a number >= 0, or all"),
        (("--main-gpu", "0"), "main_gpu must not be given without gpu_layers"),
        (("--gpu-layers", "all", "--tensor-split", "1,x"), "--tensor-split must be numbers"),
        (("--settings", "none.toml"), "none.toml"),
        (("--settings", "sampling.toml"), "the settings file must not have a table sampling"),
    ],
)
def test_invalid_options_are_one_line(
    cycle: Path,
    tmp_path: Path,
    options: Sequence[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sampling.toml").write_text("[sampling]\ntemperature = 1.0\n")
    assert cli.main(["openai", str(cycle), *options]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_options_reach_the_context_and_the_draft_worker(cycle: Path, tmp_path: Path) -> None:
    """A settings file, a draft model, and the type of the KV; the options override the file."""
    settings = tmp_path / "settings.toml"
    settings.write_text(
        '[driver]\npolicy = "first-match"\n[target]\nkv_type = "f16"\nmax_width = 16\ncontext_size = 512\n'
        "[layers.prompt-lookup]\nenabled = false\n[layers.suffix]\nenabled = false\n"
    )
    options = ("--settings", str(settings), "--draft", str(cycle), "--kv-type", "f32", "--parallel", "2")
    with process_of(cycle, tmp_path, *options) as (process, address), client_at(address) as client:
        [model] = httpx.get(f"http://{address}/v1/models").json()["data"]
        assert model["max_model_len"] == 512
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        lines = [Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0") for child in children]
        [worker] = [line for line in lines if "draft-worker" in line]
        for name, value in (("--kv-type", "f32"), ("--slots", "2"), ("--context", "512"), ("--threads", "1")):
            assert worker[worker.index(name) + 1] == value
        answer: Any = client.completions.create(model="cycle", prompt="ab", max_tokens=20, temperature=0)
        assert answer.choices[0].text == cycle_text("b", 20)
        sources = answer.metrics["speculative_decoding"]["tokens_by_source"]
        assert sources["prompt"] == sources["suffix"] == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
