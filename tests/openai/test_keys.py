"""API keys: files, who is let in, and where a server without keys listens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import openai
from suffixsvc.errors import InvalidConfigError, ListenError
from suffixsvc_openai.app.http.keys import read_keys
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import client_of, running, settings_of
from support.serving import PATIENCE_S


@pytest.fixture
def keyed(cycle: Path, tmp_path: Path) -> Iterator[OpenAIServer]:
    path = tmp_path / "keys.toml"
    path.write_text('[keys]\n"sk-alice-1" = "alice"\n')
    with running(settings_of(cycle, keys=read_keys(path))) as server:
        yield server


def test_a_known_key_is_let_in_and_no_other(keyed: OpenAIServer) -> None:
    with client_of(keyed, "sk-alice-1") as client:
        assert client.models.list().data[0].id == "cycle"
        answer = client.completions.create(model="cycle", prompt="a", max_tokens=2, temperature=0)
        assert answer.choices[0].text == "bc"
    for key in ("sk-alice-2", "sk-alice", "sk-alice-11", "alice"):
        with client_of(keyed, key) as client, pytest.raises(openai.AuthenticationError) as refused:
            client.completions.create(model="cycle", prompt="a", max_tokens=2)
        assert refused.value.code == "invalid_api_key"
    with httpx.Client(base_url=f"http://{keyed.address}", timeout=PATIENCE_S) as http:
        for path in ("/v1/models", "/v1/models/cycle", "/metrics"):
            assert http.get(path).status_code == 401
        assert http.get("/v1/models", headers={"Authorization": "sk-alice-1"}).status_code == 401
        assert http.post("/v1/completions", content=b"{").status_code == 401  # before the body is read
        assert http.get("/health").json() == {"status": "ok"}
        # keys make the server usable through any name of the machine
        known = {"Authorization": "Bearer sk-alice-1", "Host": "models.example"}
        assert http.get("/v1/models", headers=known).status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keys = 5",
        "[keys]",
        '[keys]\n"short" = "alice"',
        '[keys]\n"sk-alice-1" = "a/b"',
        '[keys]\n"sk-alice-1" = ""',
        '[keys]\n"sk-alice-1" = 5',
        '[keys]\n"sk-alice-1" = ".."',
        '[keys]\n"sk with blanks" = "alice"',
        '[keys]\n"sk-alice-1" = "alice"\n[more]',
        "no toml",
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfigError, match="--api-keys must") as refused:
        read_keys(path)
    assert "sk-alice" not in str(refused.value)  # keys are secrets


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="readable file"):
        read_keys(tmp_path / "none.toml")


def test_without_keys_only_this_machine_is_served(cycle: Path) -> None:
    settings = replace(settings_of(cycle), host="0.0.0.0")
    with pytest.raises(ListenError, match="--api-keys FILE"):
        OpenAIServer(settings)


def test_a_used_port_is_refused_before_the_model_is_loaded(keyed: OpenAIServer, tmp_path: Path) -> None:
    port = int(keyed.address.rpartition(":")[2])
    settings = replace(settings_of(tmp_path / "no-model.gguf"), port=port)
    with pytest.raises(ListenError, match="free port"):
        OpenAIServer(settings)
