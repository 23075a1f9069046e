"""Who may use the server: tokens, certificates, rights of principals, and where it listens without them."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import openai
from suffixsvc import SuffixCache
from suffixsvc.access import refreshing
from suffixsvc.access.control import AccessControl
from suffixsvc.access.tokens import TokenFile
from suffixsvc.errors import ListenError
from suffixsvc_openai.app.run import OpenAIServer
from support.live_events import watching
from support.openai_serving import (
    ENDLESS,
    LANES,
    NO_DRAFTS,
    QUEUE,
    access_to,
    client_of,
    idle,
    running,
    settings_of,
    token_of,
)
from support.serving import PATIENCE_S, eventually, serving
from support.tls_files import TlsFiles

UNKNOWN = token_of("alice", 9)
REQUEST: dict[str, Any] = {"model": "cycle", "prompt": "a", "max_tokens": 2, "temperature": 0}


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.toml")


@pytest.fixture
def keyed(cycle: Path, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    """A server whose file of tokens has none yet, and is looked at often."""
    monkeypatch.setattr(refreshing, "ACCESS_PERIOD_SECONDS", 0.02)
    access = AccessControl(tokens, required=True)
    with running(settings_of(cycle, access=access, context=1 << 15)) as server:
        yield server


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path / "tls")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def refused(server: OpenAIServer, token: str) -> openai.AuthenticationError:
    with client_of(server, token) as client, pytest.raises(openai.AuthenticationError) as caught:
        client.completions.create(**REQUEST)
    assert caught.value.code == "invalid_api_key"
    return caught.value


def test_a_known_token_is_let_in_and_no_other(keyed: OpenAIServer, tokens: TokenFile) -> None:
    good = tokens.create("alice")
    with client_of(keyed, good) as client:
        assert client.models.list().data[0].id == "cycle"
        assert client.completions.create(**REQUEST).choices[0].text == "bc"
    for other in (UNKNOWN, good[:-1], good + "x", "alice", good.split("_")[1]):
        assert "unknown, revoked or expired" in refused(keyed, other).message
    assert "expired" in refused(keyed, tokens.create("alice", timedelta(microseconds=1))).message


ROUTES = [
    ("GET", "/live"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/cycle"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("GET", "/v1/responses/resp_1/input_items"),
]


def test_every_route_but_health_and_the_page_needs_a_token(keyed: OpenAIServer, tokens: TokenFile) -> None:
    """Before the body is read. The table of docs/openai.md has these routes, and no other is there."""
    tokens.create("alice")
    with httpx.Client(base_url=f"http://{keyed.address}", timeout=PATIENCE_S) as http:
        for method, path in ROUTES:
            for headers in ({}, {"Authorization": "Basic YTpi"}, {"Authorization": UNKNOWN}, bearer(UNKNOWN)):
                answer = http.request(method, path, headers=headers, content=b"{")
                assert answer.status_code == 401, (path, headers)
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                assert answer.json()["error"]["code"] == "invalid_api_key"
        assert http.get("/health").json() == {"status": "ok"}
        assert "alice" not in http.get("/").text
        # with tokens the server has any name of the machine
        known = {**bearer(tokens.create("bob")), "Host": "models.example"}
        assert http.get("/v1/models", headers=known).status_code == 200
    app: Any = keyed._uvicorn.config.app
    routes = {(next(iter(route.methods)), route.path) for route in app._app._app.routes}
    named = {
        (method, path.replace("resp_1", "{id}").replace("cycle", "{name:path}")) for method, path in ROUTES
    }
    assert routes == named | {("GET", "/"), ("GET", "/health"), ("POST", "/v1/responses/compact")}


def test_metrics_need_a_principal_with_every_right(cycle: Path, tmp_path: Path) -> None:
    """They are those of all principals."""
    alice, ops = token_of("alice"), token_of("ops")
    with running(settings_of(cycle, access=access_to(tmp_path, alice, ops, admins=["ops"]))) as server:
        url = f"http://{server.address}/metrics"
        answer = httpx.get(url, headers=bearer(alice), timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
        assert '[principals."alice"] admin = ["*"]' in answer.json()["error"]["message"]
        assert "suffixsvc" in httpx.get(url, headers=bearer(ops), timeout=PATIENCE_S).text


HOSTILE = {
    "several": [b"Authorization: Bearer %(good)s", b"Authorization: Bearer %(good)s"],
    "several in one": [b"Authorization: Bearer %(good)s, Bearer %(good)s"],
    "not ASCII": [b"Authorization: Bearer \xe9\xff%(good)s"],
    "long": [b"Authorization: Bearer " + b"x" * 40_000],
    "no scheme": [b"Authorization: %(good)s"],
    "empty": [b"Authorization:"],
    "beyond every limit": [b"Authorization: Bearer " + b"x" * 400_000],
    "zero byte": [b"Authorization: Bearer a\x00b"],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_headers_are_refused_and_harm_nothing(
    keyed: OpenAIServer, tokens: TokenFile, kind: str
) -> None:
    good = tokens.create("alice")
    lines = [line.replace(b"%(good)s", good.encode()) for line in HOSTILE[kind]]
    host, _, port = keyed.address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        request = [b"GET /v1/models HTTP/1.1", b"Host: x", b"Connection: close", *lines, b"", b""]
        answer = b""
        try:
            connection.sendall(b"\r\n".join(request))
            while part := connection.recv(4096):
                answer += part
        except ConnectionError:
            assert kind == "beyond every limit"  # closed while it was sent
    assert not answer or answer.split()[1] in (b"400", b"401"), answer
    with client_of(keyed, good) as client:
        assert client.models.list().data


# -- changes while it runs


def test_tokens_are_replaced_without_a_restart(keyed: OpenAIServer, tokens: TokenFile) -> None:
    refused(keyed, UNKNOWN)
    first = tokens.create("alice")
    with client_of(keyed, first) as client:
        kept = client.responses.create(model="cycle", input="x", max_output_tokens=2)
    second = tokens.create("alice")
    tokens.revoke([first])
    eventually(lambda: keyed.service.authentication.principals() == 1, "the file is read")
    with client_of(keyed, second) as client:
        assert client.responses.retrieve(kept.id).id == kept.id, "the same principal"

    def is_refused() -> bool:
        answer = httpx.get(f"http://{keyed.address}/v1/models", headers=bearer(first), timeout=PATIENCE_S)
        return answer.status_code == 401

    eventually(is_refused, "the revoked one is refused")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", ["completions", "chat", "responses"])
def test_answers_of_a_revoked_token_end(
    keyed: OpenAIServer, tokens: TokenFile, api: str, stream: bool
) -> None:
    mine, other = tokens.create("alice"), tokens.create("bob")
    fields: dict[str, Any] = {"model": "cycle", "temperature": 0, "stream": stream, "extra_body": NO_DRAFTS}
    if api == "completions":
        path, body = "completions", {**ENDLESS, **NO_DRAFTS, "stream": stream}
    elif api == "chat":
        path = "chat/completions"
        body = {**fields, "messages": [{"role": "user", "content": "x"}], "max_tokens": 30_000, **NO_DRAFTS}
    else:
        path, body = "responses", {**fields, "input": "x", "max_output_tokens": 30_000, **NO_DRAFTS}
    body.pop("extra_body", None)
    url = f"http://{keyed.address}/v1/{path}"
    with (
        client_of(keyed, other) as bob,
        bob.completions.create(**ENDLESS, stream=True, extra_body=NO_DRAFTS) as others,
    ):
        next(iter(others))
        with httpx.Client(timeout=PATIENCE_S) as http:
            if stream:
                with http.stream("POST", url, json=body, headers=bearer(mine)) as response:
                    lines = response.iter_lines()
                    next(lines)
                    tokens.revoke([mine])
                    text = "\n".join(lines)
                assert response.status_code == 200
            else:
                import threading

                def revoke() -> None:
                    eventually(lambda: keyed.service.engine.load.running == LANES, "it runs")
                    tokens.revoke([mine])

                thread = threading.Thread(target=revoke)
                thread.start()
                answer = http.post(url, json=body, headers=bearer(mine))
                thread.join()
                assert answer.status_code == 401
                text = answer.text
        assert "the token was revoked or has expired" in text
        eventually(lambda: keyed.service.engine.load.running == 1, "its lane is free")
        assert next(iter(others)).choices[0].text, "others go on"
    idle(keyed)


def test_answers_of_a_token_end_when_it_expires(keyed: OpenAIServer, tokens: TokenFile) -> None:
    short = tokens.create("alice", timedelta(seconds=4))
    ended: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while True:  # answers, one after another, until the token has expired
        assert time.monotonic() < deadline
        answer = httpx.post(
            f"http://{keyed.address}/v1/completions",
            json={**ENDLESS, **NO_DRAFTS},
            headers=bearer(short),
            timeout=PATIENCE_S,
        )
        ended.append(answer.status_code)
        if answer.status_code != 200:
            break
    assert ended[-1] == 401
    idle(keyed)


def test_the_live_page_of_a_revoked_token_ends(keyed: OpenAIServer, tokens: TokenFile) -> None:
    token = tokens.create("alice")
    with (
        httpx.Client(timeout=PATIENCE_S) as http,
        http.stream("GET", f"http://{keyed.address}/live", headers=bearer(token)) as response,
    ):
        lines = response.iter_lines()
        assert "alice" in next(lines)
        tokens.revoke([token])
        list(lines)  # it ends
    answer = httpx.get(f"http://{keyed.address}/live", headers=bearer(token), timeout=PATIENCE_S)
    assert answer.status_code == 401


def test_shares_follow_the_number_of_principals(keyed: OpenAIServer, tokens: TokenFile) -> None:
    engine, bodies = keyed.service.engine, keyed.service.bodies
    alone = LANES + QUEUE // 2
    assert (engine.most_answers, bodies.shared) == (alone, False)
    first = tokens.create("alice")
    tokens.create("alice")
    refused(keyed, UNKNOWN)  # the file is read
    assert (engine.most_answers, bodies.shared) == (alone, False)
    bob = tokens.create("bob")
    eventually(lambda: bodies.shared, "a second principal")
    assert engine.most_answers == LANES + QUEUE // 4
    with client_of(keyed, first) as client:
        client.completions.create(**REQUEST)
    tokens.revoke([bob])
    eventually(lambda: engine.most_answers == alone, "one principal again")
    with client_of(keyed, first) as client:
        client.completions.create(**REQUEST)


# -- where it listens


def test_without_tokens_only_this_machine_is_served(cycle: Path) -> None:
    with pytest.raises(ListenError, match="--tokens FILE") as caught:
        OpenAIServer(replace(settings_of(cycle), host="0.0.0.0"))
    assert "--insecure-network" in str(caught.value.remedy)


def test_tokens_do_not_cross_a_network_in_plain_text(cycle: Path, tmp_path: Path, files: TlsFiles) -> None:
    settings = replace(settings_of(cycle, access=access_to(tmp_path, token_of("alice"))), host="0.0.0.0")
    with pytest.raises(ListenError, match="--tls-cert FILE"):
        OpenAIServer(settings)
    with pytest.raises(ListenError, match="--tokens FILE"):  # nor does encryption alone say who calls
        OpenAIServer(replace(settings, access=AccessControl(), tls=files.server()))
    with running(replace(settings, tls=files.server())) as server:
        port = server.address.rpartition(":")[2]
        answer = httpx.get(
            f"https://127.0.0.1:{port}/v1/models",
            headers=bearer(token_of("alice")),
            verify=ssl.create_default_context(cafile=str(files.ca)),
            timeout=PATIENCE_S,
        )
        assert answer.status_code == 200


def test_an_insecure_network_is_served_but_no_page_of_another_host(cycle: Path) -> None:
    access = AccessControl(insecure_network=True)
    with running(replace(settings_of(cycle, access=access), host="0.0.0.0")) as server:
        port = server.address.rpartition(":")[2]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
            for headers, status in (
                ({"Host": "gpu1.lan"}, 200),
                ({"Host": "gpu1.lan", "Origin": "http://gpu1.lan"}, 200),
                ({"Host": "gpu1.lan", "Origin": "http://evil.example"}, 403),
                ({"Host": "gpu1.lan", "Origin": "null"}, 403),
            ):
                assert http.get("/v1/models", headers=headers).status_code == status, headers


def test_a_used_port_is_refused_before_the_model_is_loaded(keyed: OpenAIServer, tmp_path: Path) -> None:
    port = int(keyed.address.rpartition(":")[2])
    with pytest.raises(ListenError, match="free port"):
        OpenAIServer(replace(settings_of(tmp_path / "no-model.gguf"), port=port))


# -- certificates


def trusting(files: TlsFiles, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.ca))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


def models(server: OpenAIServer, context: ssl.SSLContext, **headers: str) -> httpx.Response:
    url = f"https://{server.address}/v1/models"
    return httpx.get(url, verify=context, headers=headers, timeout=PATIENCE_S)


def test_a_certificate_names_its_principal(cycle: Path, files: TlsFiles, tmp_path: Path) -> None:
    policy = tmp_path / "policies.toml"
    policy.write_text(
        '[principals."sql"]\ncertificates = ["sql.example"]\n[principals."ops"]\ncertificates = ["The Ops"]\n'
        'admin = ["*"]\n'
    )
    settings = settings_of(cycle, access=AccessControl(None, policy))
    with running(replace(settings, tls=files.server(mutual=True))) as server:
        sql = trusting(files, files.issue("sql.example"))
        ops = trusting(files, files.issue(common_name="The Ops"))
        assert models(server, sql).status_code == models(server, ops).status_code == 200
        base = f"https://{server.address}"
        for context, status in ((sql, 403), (ops, 200)):
            answer = httpx.get(f"{base}/metrics", verify=context, timeout=PATIENCE_S)
            assert answer.status_code == status
        with (  # OpenAI's clients always send a key
            httpx.Client(verify=sql, timeout=PATIENCE_S) as http,
            openai.OpenAI(base_url=f"{base}/v1", api_key="x", http_client=http, max_retries=0) as client,
        ):
            assert client.completions.create(**REQUEST).choices[0].text == "bc"
        idle(server)
        stored = server.service.engine._memory.stored("sql")
        assert [each.outputs for each in stored] == [1]
        # another one of the authority is connected, but stands for no principal
        stranger = models(server, trusting(files, files.issue("other.example")))
        assert stranger.status_code == 401
        assert "other.example" in stranger.json()["error"]["message"]


@pytest.mark.parametrize("who", ["no certificate", "of another authority", "server of another"])
def test_without_a_valid_certificate_there_is_no_connection(
    cycle: Path, files: TlsFiles, tmp_path: Path, who: str
) -> None:
    strangers = TlsFiles(tmp_path / "strangers")
    context = {
        "no certificate": trusting(files),
        "of another authority": trusting(files, strangers.issue("sql.example")),
        "server of another": trusting(strangers, files.issue("sql.example")),
    }[who]
    access = access_to(tmp_path, token_of("alice"))
    with running(replace(settings_of(cycle, access=access), tls=files.server(mutual=True))) as server:
        with pytest.raises(httpx.TransportError):
            models(server, context, **bearer(token_of("alice")))
        with pytest.raises(httpx.TransportError):  # nor unencrypted
            httpx.get(f"http://{server.address}/health", timeout=PATIENCE_S)
        good = trusting(files, files.issue("any.example"))
        assert models(server, good, **bearer(token_of("alice"))).status_code == 200


def test_certificates_are_replaced_without_a_restart(cycle: Path, files: TlsFiles, tmp_path: Path) -> None:
    """That of the server, its key, and the authority of its clients."""
    access, token = access_to(tmp_path, token_of("alice")), bearer(token_of("alice"))
    tls = files.server(mutual=True)
    assert tls.client_ca is not None
    with running(replace(settings_of(cycle, access=access), tls=tls)) as server:
        before = trusting(files, files.issue("a.example"))
        assert models(server, before, **token).status_code == 200
        later = TlsFiles(tmp_path / "later")
        new = later.server(mutual=True)
        after = trusting(later, later.issue("a.example"))
        tls.key.write_text("being replaced")
        assert models(server, before, **token).status_code == 200, "an invalid file changes nothing"
        tls.certificate.write_bytes(new.certificate.read_bytes())
        tls.client_ca.write_bytes(later.ca.read_bytes())
        tls.key.write_bytes(new.key.read_bytes())
        assert models(server, after, **token).status_code == 200
        with pytest.raises(httpx.TransportError):
            models(server, before, **token)
        mixed = trusting(later, files.issue("a.example"))  # a client of the authority before
        with pytest.raises(httpx.TransportError):
            models(server, mixed, **token)


# -- outputs in a service


@pytest.mark.parametrize("granted", [True, False])
def test_outputs_go_to_a_service_under_the_servers_own_identity(
    cycle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: bool
) -> None:
    """The service knows the server, not its clients: it needs rights on their prefixes, or stores nothing."""
    of_service = TokenFile(tmp_path / "service.toml")
    policy = tmp_path / "service-policies.toml"
    policy.write_text('[principals."models"]\nadmin = ["alice", "bob"]\n' if granted else "")
    monkeypatch.setenv("SUFFIXSVC_TOKEN", of_service.create("models"))
    alice, bob = token_of("alice"), token_of("bob")
    with (
        SuffixCache() as cache,
        serving(cache, "127.0.0.1:0", access=AccessControl(of_service, policy)) as (_, address),
        running(
            settings_of(cycle, access=access_to(tmp_path, alice, bob), service=address, mode="remote")
        ) as server,
    ):
        for token in (alice, bob):
            with client_of(server, token) as client:
                assert client.completions.create(**REQUEST).choices[0].text == "bc"
        idle(server)
        stored = sorted(each.path.split("/")[0] for each in cache.namespaces())
        assert stored == (["alice", "bob"] if granted else [])
        if granted:
            with watching(server, alice) as viewer:
                viewer.until(lambda reader: reader.stored)
            assert [row[:2] for row in viewer.stored or ()] == [["default", 1]]
            assert "bob" not in repr(viewer.messages)
