"""TLS and mutual TLS of a real service: who connects, whom a certificate stands for, and replaced files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.access.control import AccessControl
from suffixsvc.access.tokens import TokenFile
from suffixsvc.errors import InvalidConfigError, ServiceUnavailableError, UnauthenticatedError
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc.transport.tls import ClientTls, server_tls
from suffixsvc_client import AsyncSuffixClient, ClientConfig, SuffixClient
from suffixsvc_follower import FollowerConfig, connect
from support.command_line import run_verb
from support.serving import eventually, serving
from support.tls_files import TlsFiles


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def access(tmp_path: Path) -> AccessControl:
    policy = tmp_path / "policies.toml"
    policy.write_text('[principals."alice"]\ncertificates = ["alice.example"]\n')
    return AccessControl(TokenFile(tmp_path / "tokens.toml"), policy)


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        yield cache


def config(tls: ClientTls | None, token: str | None = None) -> ClientConfig:
    return ClientConfig(
        identity=ClientIdentity(token=token, tls=tls), step_timeout_s=60, open_timeout_s=60, call_timeout_s=30
    )


def test_a_step_over_tls_with_a_token(
    cache: SuffixCache, certificates: TlsFiles, access: AccessControl, tmp_path: Path
) -> None:
    token = TokenFile(tmp_path / "tokens.toml").create("alice")
    tls = certificates.server()
    with serving(cache, "localhost:0", access=access, tls=tls) as (_, address):
        settings = config(certificates.client(), token)
        with SuffixClient(address, settings) as client:
            client.namespace("alice/a").add_output([1, 2, 3, 4, 5, 6])
            with client.namespace("alice/a").open_session([9]) as session:
                assert session.step([1, 2, 3]).token_ids.tolist()[:2] == [4, 5]

        async def step() -> list[int]:
            async with AsyncSuffixClient(address, settings) as client:
                session = await client.namespace("alice/a").open_session([9])
                draft = await session.step([1, 2, 3])
                await session.close(commit=False)
                return draft.token_ids.tolist()

        assert asyncio.run(step())[:2] == [4, 5]
        with connect(address, config=FollowerConfig(client=settings, connect_seconds=60)) as follower:
            assert follower.namespace("alice/a").wait(60)


def test_without_tls_or_with_another_authority_nothing_is_reached(
    cache: SuffixCache, certificates: TlsFiles, access: AccessControl, tmp_path: Path
) -> None:
    token = TokenFile(tmp_path / "tokens.toml").create("alice")
    other = TlsFiles(tmp_path / "other")
    tls = certificates.server()
    with serving(cache, "localhost:0", access=access, tls=tls) as (_, address):
        for wrong in (None, other.client(), ClientTls(certificates.ca, server_name="elsewhere.example")):
            with (
                SuffixClient(address, config(wrong, token)) as client,
                pytest.raises(ServiceUnavailableError),
            ):
                client.namespaces()
        with (
            SuffixClient(address, config(certificates.client())) as client,
            pytest.raises(UnauthenticatedError, match="must present a token"),
        ):
            client.namespaces()


def test_a_certificate_stands_for_its_principal(
    cache: SuffixCache, certificates: TlsFiles, access: AccessControl, tmp_path: Path
) -> None:
    other = TlsFiles(tmp_path / "other")
    tls = certificates.server(mutual=True)
    with serving(cache, "localhost:0", access=access, tls=tls) as (_, address):
        with SuffixClient(address, config(certificates.client("alice.example"))) as alice:
            alice.namespace("alice/a").add_output([1, 2])
            assert [record.path for record in alice.namespaces()] == ["alice/a"]
        with (
            SuffixClient(address, config(certificates.client("mallory.example"))) as mallory,
            pytest.raises(UnauthenticatedError, match=r"mallory\.example"),
        ):
            mallory.namespaces()
        forged = ClientTls(certificates.ca, *other.issue("alice.example"))
        for wrong in (certificates.client(), forged):
            with SuffixClient(address, config(wrong)) as client, pytest.raises(ServiceUnavailableError):
                client.namespaces()


def test_a_token_outdoes_a_certificate(
    cache: SuffixCache, certificates: TlsFiles, access: AccessControl, tmp_path: Path
) -> None:
    token = TokenFile(tmp_path / "tokens.toml").create("bob")
    tls = certificates.server(mutual=True)
    settings = config(certificates.client("alice.example"), token)
    with (
        serving(cache, "localhost:0", access=access, tls=tls) as (_, address),
        SuffixClient(address, settings) as bob,
    ):
        bob.namespace("bob/b").add_output([1, 2])


def test_replaced_files_are_used_by_new_connections(
    cache: SuffixCache, access: AccessControl, tmp_path: Path
) -> None:
    token = TokenFile(tmp_path / "tokens.toml").create("alice")
    before, after = TlsFiles(tmp_path / "before"), TlsFiles(tmp_path / "after")
    tls, renewed = before.server(), after.server()
    with serving(cache, "localhost:0", access=access, tls=tls) as (_, address):

        def reached(ca: TlsFiles) -> bool:
            with SuffixClient(address, config(ca.client(), token)) as client:
                try:
                    return client.namespaces() == []
                except ServiceUnavailableError:
                    return False

        assert reached(before)
        tls.key.write_bytes(renewed.key.read_bytes())  # half of a replacement
        assert reached(before)
        tls.certificate.write_bytes(renewed.certificate.read_bytes())
        eventually(lambda: reached(after), "it takes effect")
        assert not reached(before)


def test_health_is_asked_over_tls(
    cache: SuffixCache, certificates: TlsFiles, access: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certificates.server()
    with serving(cache, "localhost:0", access=access, tls=tls) as (_, address):
        assert run_verb("health", address).returncode == 1
        monkeypatch.setenv("SUFFIXSVC_TLS_CA", str(certificates.ca))
        done = run_verb("health", address)
        assert (done.returncode, done.stdout) == (0, "serving\n")


def test_files_are_checked_at_the_start(certificates: TlsFiles, tmp_path: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    own, other = certificates.server(), TlsFiles(tmp_path / "other").server()
    for certificate, key, ca, message in (
        (own.certificate, None, None, "given together"),
        (None, own.key, None, "given together"),
        (None, None, certificates.ca, "given together"),
        (tmp_path / "none", own.key, None, "readable"),
        (text, own.key, None, "PEM file"),
        (own.certificate, own.certificate, None, "PEM file"),
        (own.certificate, other.key, None, "its key"),
        (own.certificate, own.key, text, "PEM file"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            server_tls(certificate, key, ca)
    assert server_tls(None, None, None) is None


def test_an_identity_comes_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("sfx_abc\n")
    identity = ClientIdentity.from_environment(
        {"SUFFIXSVC_TOKEN_FILE": str(file), "SUFFIXSVC_TLS_CA": "/x/ca.pem", "SUFFIXSVC_TLS_SERVER_NAME": "s"}
    )
    assert identity.credential().metadata == (("authorization", "Bearer sfx_abc"),)
    assert identity.tls == ClientTls(Path("/x/ca.pem"), server_name="s")
    file.write_text("sfx_next")
    assert identity.credential().metadata == (("authorization", "Bearer sfx_next"),)
    assert ClientIdentity.from_environment({"SUFFIXSVC_TOKEN": "t"}).credential().metadata == (
        ("authorization", "Bearer t"),
    )
    assert ClientIdentity.from_environment({"PATH": "/"}) == ClientIdentity()
    for wrong in (
        {"SUFFIXSVC_TOKEN": "t", "SUFFIXSVC_TOKEN_FILE": "f"},
        {"SUFFIXSVC_TOKEN": "with space"},
        {"SUFFIXSVC_TLS_CERT": "/x"},
    ):
        with pytest.raises(InvalidConfigError):
            ClientIdentity.from_environment(wrong)
    file.unlink()
    with pytest.raises(InvalidConfigError, match="must be readable"):
        identity.credential()
    assert "sfx_secret" not in repr(ClientIdentity(token="sfx_secret"))


@pytest.mark.parametrize("target", ["10.0.0.1:5", "host.example:5", "[2001:db8::1]:5"])
def test_a_token_is_not_sent_unencrypted_to_another_machine(target: str) -> None:
    with pytest.raises(InvalidConfigError, match="must be sent over TLS"):
        SuffixClient(target, ClientConfig(identity=ClientIdentity(token="t")))
    for allowed in (
        ClientIdentity(token="t", plaintext_token=True),
        ClientIdentity(token="t", tls=ClientTls()),
        ClientIdentity(),
    ):
        SuffixClient(target, ClientConfig(identity=allowed)).close()
    for own in ("127.0.0.1:5", "localhost:5", "[::1]:5", "unix:/tmp/x"):
        SuffixClient(own, ClientConfig(identity=ClientIdentity(token="t"))).close()
