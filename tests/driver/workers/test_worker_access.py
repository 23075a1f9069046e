"""Who may use a draft worker, and that two principals share nothing there: real tokens and certificates."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import structlog.testing
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suffixsvc import wire
from suffixsvc.access.control import AccessControl
from suffixsvc.access.tokens import TokenFile
from suffixsvc.errors import (
    LimitExceededError,
    ServiceUnavailableError,
    SuffixError,
    UnauthenticatedError,
    UnknownSessionError,
)
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc.transport.tls import ClientTls
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc as rpc
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.pool.pool import WorkerPool
from suffixsvc_driver.workers.server.engine import DraftEngine
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer, WorkerEdge, WorkerSettings
from suffixsvc_models.vocabulary import Vocabulary
from support.command_line import run_verb
from support.serving import PATIENCE_S, eventually
from support.targets import talkative_prompt
from support.tls_files import TlsFiles
from support.worker_parts import sequences_of

SETTINGS = ContextSettings(
    context_size=512, slots=4, threads=1, max_width=1, flash_attention=False, kv_type="f32"
)
TEXT = list(range(70, 90))
ANONYMOUS = ClientIdentity()
POLICIES = '[principals."sql"]\ncertificates = ["sql.example"]\n'

Metadata = tuple[tuple[str, str], ...]


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[DraftEngine]:
    engine = DraftEngine(tiny_model, SETTINGS)
    yield engine
    engine.close()


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.toml")


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path / "tls")


@contextmanager
def worker(
    engine: DraftEngine, edge: WorkerEdge, address: str = "127.0.0.1:0", drivers: int = 64
) -> Iterator[str]:
    settings = WorkerSettings(busy_after_seconds=PATIENCE_S, drivers=drivers)
    server = DraftWorkerServer(engine, address, settings, edge)
    server.start()
    try:
        yield server.address
    finally:
        server.stop()


@contextmanager
def open_to(engine: DraftEngine, tokens: TokenFile) -> Iterator[str]:
    """A worker for those who have a token."""
    with worker(engine, WorkerEdge(AccessControl(tokens, required=True))) as address:
        yield address


def with_token(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


class Stream:
    """A Draft stream of one client, without the client's retries."""

    def __init__(self, address: str, metadata: Metadata) -> None:
        self._channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._requests: queue.SimpleQueue[pb.WorkerDraftRequest | None] = queue.SimpleQueue()
        self._numbers = 0
        self.call: Any = rpc.DraftWorkerStub(self._channel).Draft(
            iter(self._requests.get, None), metadata=metadata, timeout=PATIENCE_S
        )

    def ask(
        self, session: str, text: Sequence[int] = (), keep: int = 0, principal: str = "", **more: Any
    ) -> pb.WorkerDraftReply:
        self._numbers += 1
        self._requests.put(
            pb.WorkerDraftRequest(
                seq=self._numbers,
                session_id=session,
                keep=keep,
                new_token_ids=wire.pack_tokens(np.array(text, np.int32)),
                max_draft_tokens=3,
                wait_seconds=PATIENCE_S,
                principal=principal,
                **more,
            )
        )
        reply: pb.WorkerDraftReply = next(self.call)
        return reply

    def close(self) -> None:
        self._requests.put(None)
        self.call.cancel()
        self._channel.close()


@contextmanager
def streams(address: str, *tokens: str) -> Iterator[list[Stream]]:
    opened = [Stream(address, with_token(token)) for token in tokens]
    try:
        yield opened
    finally:
        for each in opened:
            each.close()


def refusal(call: Callable[[], object]) -> UnauthenticatedError:
    """The error that the worker sent for a call that it did not authenticate."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    sent = wire.error_from_metadata(error.trailing_metadata())
    assert isinstance(sent, UnauthenticatedError)
    return sent


def calls_of(stub: rpc.DraftWorkerStub, metadata: Metadata) -> list[Callable[[], object]]:
    """Every method, also with requests that never come, or are not of the method."""
    never: Any = iter(queue.SimpleQueue().get, None)
    options: dict[str, Any] = {"metadata": metadata, "timeout": PATIENCE_S}
    return [
        lambda: stub.Describe(pb.DescribeRequest(), **options),
        lambda: list(stub.GetVocab(pb.GetVocabRequest(fingerprint="x"), **options)),
        lambda: list(stub.Draft(iter([pb.WorkerDraftRequest(session_id="s")]), **options)),
        lambda: list(stub.Draft(never, **options)),
    ]


HEADERS: dict[str, Metadata] = {
    "none": (),
    "unknown token": with_token("sfx_aaaaaaaaaa_" + "x" * 43),
    "no token": (("authorization", "Bearer"),),
    "another scheme": (("authorization", "Basic YTpi"),),
    "long": with_token("sfx_" + "x" * 6000),
}


@pytest.mark.parametrize("header", HEADERS)
def test_no_method_answers_a_caller_that_it_does_not_know(
    engine: DraftEngine, tokens: TokenFile, header: str
) -> None:
    tokens.create("alice")
    with open_to(engine, tokens) as address, grpc.insecure_channel(address) as channel:
        for call in calls_of(rpc.DraftWorkerStub(channel), HEADERS[header]):
            error = refusal(call)
            assert "suffixsvc token create" in str(error.remedy) or error.got == "another form"


def test_several_tokens_in_one_call_are_refused(engine: DraftEngine, tokens: TokenFile) -> None:
    """Which of them is meant would depend on who reads it."""
    both = (*with_token(tokens.create("alice")), *with_token(tokens.create("bob")))
    with open_to(engine, tokens) as address, grpc.insecure_channel(address) as channel:
        for call in calls_of(rpc.DraftWorkerStub(channel), both):
            assert refusal(call).got == "several"


def test_headers_beyond_a_limit_and_bytes_that_are_no_text_do_no_harm(
    engine: DraftEngine, tokens: TokenFile
) -> None:
    good = tokens.create("alice")
    with open_to(engine, tokens) as address, grpc.insecure_channel(address) as channel:
        stub = rpc.DraftWorkerStub(channel)
        for hostile in ("x" * 100_000, "Bearer " + "\u00e9" * 9, "Bearer a\nb"):
            with pytest.raises((grpc.RpcError, ValueError, UnicodeEncodeError, AssertionError)):
                stub.Describe(
                    pb.DescribeRequest(), metadata=(("authorization", hostile),), timeout=PATIENCE_S
                )
        reply = stub.Describe(pb.DescribeRequest(), metadata=with_token(good), timeout=PATIENCE_S)
        assert reply.vocab_size > 0


def test_a_token_lets_its_client_in_and_an_empty_file_nobody(
    engine: DraftEngine, tokens: TokenFile, vocabulary: Vocabulary
) -> None:
    with open_to(engine, tokens) as address:  # the file does not exist yet
        with (
            DraftWorkerClient(address, ANONYMOUS) as stranger,
            pytest.raises(UnauthenticatedError) as refused,
        ):
            stranger.check_vocabulary(vocabulary)
        assert "suffixsvc token create" in str(refused.value.remedy)
        with DraftWorkerClient(address, ClientIdentity(tokens.create("alice"))) as client:
            assert client.check_vocabulary(vocabulary).vocabulary.fingerprint == vocabulary.fingerprint
            assert client.vocabulary(client.describe()).texts == vocabulary.texts
            session = client.open_session(p_min=0.0)
            session.set_text(TEXT)
            eventually(lambda: len(session.draft(3, PATIENCE_S)) == 3, "it drafts")
            session.close()


def test_a_worker_without_tokens_ignores_the_one_of_another_service(
    engine: DraftEngine, monkeypatch: pytest.MonkeyPatch, socket_path: str
) -> None:
    """The environment of a driver names the token of its service, which the worker cannot know."""
    monkeypatch.setenv("SUFFIXSVC_TOKEN", "sfx_aaaaaaaaaa_" + "x" * 43)
    for address in ("127.0.0.1:0", f"unix:{socket_path}"):
        with worker(engine, WorkerEdge(), address) as bound, DraftWorkerClient(bound) as client:
            assert client.describe().vocabulary.size > 0


def test_the_own_user_needs_no_token_at_a_unix_socket(
    engine: DraftEngine, tokens: TokenFile, socket_path: str
) -> None:
    edge = WorkerEdge(AccessControl(tokens, required=True))
    with worker(engine, edge, f"unix:{socket_path}") as address:
        with DraftWorkerClient(address, ANONYMOUS) as client:
            assert client.describe().vocabulary.size > 0
        unknown = ClientIdentity("sfx_aaaaaaaaaa_x")
        with DraftWorkerClient(address, unknown) as client, pytest.raises(UnauthenticatedError):
            client.describe()  # a revoked token must not become the operator's


def test_health_needs_no_credential(engine: DraftEngine, tokens: TokenFile) -> None:
    with open_to(engine, tokens) as address:
        health = run_verb("health", address)
        assert (health.returncode, health.stdout) == (0, "serving\n"), health.stderr
        with grpc.insecure_channel(address) as channel:  # as any other client of the protocol
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=PATIENCE_S
            )
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    assert run_verb("health", address).returncode == 1


def test_tokens_are_replaced_while_the_worker_runs(engine: DraftEngine, tokens: TokenFile) -> None:
    first, other = tokens.create("alice"), tokens.create("bob")
    with open_to(engine, tokens) as address, streams(address, first, other) as (alice, bob):
        assert alice.ask("s", TEXT).length == len(TEXT)
        assert bob.ask("s", TEXT).length == len(TEXT)
        second = tokens.create("alice")
        with streams(address, second) as [again]:
            # the same principal: its sessions are the same, too
            assert again.ask("s", [99], keep=len(TEXT)).length == len(TEXT) + 1
        tokens.revoke([first])
        eventually(lambda: not alice.call.is_active(), "the stream of the revoked token has ended")
        assert alice.call.code() is grpc.StatusCode.CANCELLED
        with streams(address, first) as [revoked]:
            assert "revoked" in refusal(lambda: revoked.ask("s", TEXT)).message
        assert bob.ask("s", [99], keep=len(TEXT)).length == len(TEXT) + 1, "others go on"


def test_an_expired_token_ends_its_stream_without_a_change_of_the_file(
    engine: DraftEngine, tokens: TokenFile
) -> None:
    short = tokens.create("alice", timedelta(seconds=3))
    with open_to(engine, tokens) as address, streams(address, short) as [stream]:
        eventually(lambda: not stream.call.is_active(), "the stream has ended")
        assert stream.call.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAUTHENTICATED)
        with streams(address, short) as [later]:
            assert "expired" in refusal(lambda: later.ask("s", TEXT)).message


def test_an_invalid_file_changes_nothing_and_tells_callers_nothing(
    engine: DraftEngine, tokens: TokenFile
) -> None:
    good = tokens.create("alice")
    with open_to(engine, tokens) as address, streams(address, good) as [stream]:
        tokens.path.write_text("no toml")
        with streams(address, "sfx_aaaaaaaaaa_x") as [unknown]:
            error = refusal(lambda: unknown.ask("s", TEXT))
            assert str(tokens.path) not in str(error)
        assert stream.ask("s", TEXT).length == len(TEXT)


# -- two principals


@pytest.fixture
def computed(engine: DraftEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of tokens of the worker's batches, and of copies of KV as -1."""
    found: list[int] = []
    decode, copy = engine.context.decode, engine.context.copy

    def decoded(tokens: Sequence[int], *rest: Any, **more: Any) -> None:
        found.append(len(tokens))
        decode(tokens, *rest, **more)

    def copied(*given: int) -> None:
        found.append(-1)
        copy(*given)

    monkeypatch.setattr(engine.context, "decode", decoded)
    monkeypatch.setattr(engine.context, "copy", copied)
    return found


@pytest.mark.parametrize("principal", ["", "team"])
def test_equal_sessions_and_principals_of_two_tokens_share_nothing(
    engine: DraftEngine, tokens: TokenFile, computed: list[int], principal: str
) -> None:
    with (
        open_to(engine, tokens) as address,
        streams(address, tokens.create("alice"), tokens.create("bob"), tokens.create("alice")) as (
            a,
            b,
            also,
        ),
    ):
        first = a.ask("s", TEXT, principal=principal)
        assert sum(computed) == len(TEXT) - 1 + 3
        computed.clear()
        probed = b.ask("s", [], keep=len(TEXT), principal=principal)
        assert isinstance(wire.error_from_detail(probed.error), UnknownSessionError)
        assert probed.length == 0
        second = b.ask("s", TEXT, principal=principal)
        assert sum(computed) == len(TEXT) - 1 + 3, "none of the other one's KV"
        assert second.draft == first.draft
        computed.clear()
        # of the same principal the KV is shared
        also.ask("t", TEXT, principal=principal)
        assert sum(count for count in computed if count > 0) < len(TEXT)
        # nor can one end the other's session or free its KV
        b.ask("s", forget=True)
        assert a.ask("s", [99], keep=len(TEXT), principal=principal).length == len(TEXT) + 1
        assert {slot.principal for slot in sequences_of(engine) if slot.tokens} == (
            {f"alice\x1f{principal}", f"bob\x1f{principal}"} if principal else {"alice\x1f"}
        )


def test_no_choice_of_names_reaches_another_principal(engine: DraftEngine, tokens: TokenFile) -> None:
    with (
        open_to(engine, tokens) as address,
        streams(address, tokens.create("a"), tokens.create("ab")) as (short, long),
    ):
        long.ask("s", TEXT, principal="p")
        for session in ("b\x1fs", "ab\x1fs", "\x1fs", "../ab/s"):
            reply = short.ask(session, [], keep=1, principal="b\x1fp")
            assert isinstance(wire.error_from_detail(reply.error), UnknownSessionError)


# -- certificates


def edge_with(files: TlsFiles, tmp_path: Path, *, mutual: bool) -> WorkerEdge:
    (tmp_path / "policies.toml").write_text(POLICIES)
    return WorkerEdge(AccessControl(None, tmp_path / "policies.toml"), files.server(mutual=mutual))


def test_a_certificate_names_its_principal(engine: DraftEngine, files: TlsFiles, tmp_path: Path) -> None:
    with worker(engine, edge_with(files, tmp_path, mutual=True)) as address:
        known = ClientIdentity(tls=files.client("sql.example"))
        with DraftWorkerClient(address, known) as client:
            session = client.open_session(p_min=0.0)
            session.set_text(TEXT)
            eventually(lambda: len(session.draft(3, PATIENCE_S)) == 3, "it drafts")
            assert {slot.principal for slot in sequences_of(engine) if slot.tokens} == {"sql\x1f"}
            session.close()
        unknown = ClientIdentity(tls=files.client("other.example"))
        with DraftWorkerClient(address, unknown) as client, pytest.raises(UnauthenticatedError) as refused:
            client.describe()
        assert refused.value.got == "certificate of 'other.example'"


@pytest.mark.parametrize("who", ["no certificate", "of another authority", "server of another", "plaintext"])
def test_without_a_valid_certificate_there_is_no_connection(
    engine: DraftEngine, files: TlsFiles, tmp_path: Path, who: str
) -> None:
    strangers = TlsFiles(tmp_path / "strangers")
    certificate, key = strangers.issue("sql.example")
    identity = {
        "no certificate": ClientIdentity(tls=files.client()),
        "of another authority": ClientIdentity(tls=ClientTls(files.ca, certificate, key)),
        "server of another": ClientIdentity(tls=strangers.client("sql.example")),
        "plaintext": ANONYMOUS,
    }[who]
    edge = edge_with(files, tmp_path, mutual=True)
    with worker(engine, edge) as address, DraftWorkerClient(address, identity) as client:
        with pytest.raises(ServiceUnavailableError, match="no draft worker answers"):
            client.describe(PATIENCE_S, patient=False)
        session = client.open_session()
        session.set_text(TEXT)
        assert len(session.draft(3, 1.0)) == 0
        session.close()


def test_a_token_over_tls(engine: DraftEngine, files: TlsFiles, tokens: TokenFile) -> None:
    edge = WorkerEdge(AccessControl(tokens, required=True), files.server())
    with worker(engine, edge) as address:
        identity = ClientIdentity(tokens.create("alice"), tls=files.client())
        with DraftWorkerClient(address, identity) as client:
            assert client.describe().vocabulary.size > 0
        with (
            DraftWorkerClient(address, ClientIdentity(tls=files.client())) as client,
            pytest.raises(UnauthenticatedError),
        ):
            client.describe()


# -- shares


def test_a_principal_leaves_streams_to_others(engine: DraftEngine, tokens: TokenFile) -> None:
    """Of four streams alice gets two, and bob one of the other two."""
    alice, bob = (with_token(tokens.create(name)) for name in ("alice", "bob"))
    edge = WorkerEdge(AccessControl(tokens, required=True))
    with worker(engine, edge, drivers=4) as address, contextlib.ExitStack() as held:

        def stream(metadata: Metadata) -> Stream:
            return held.enter_context(contextlib.closing(Stream(address, metadata)))

        def refused(metadata: Metadata) -> SuffixError | None:
            with pytest.raises(grpc.RpcError) as raised:
                stream(metadata).ask("one-more", [1, 2])
            return wire.error_from_metadata(raised.value.trailing_metadata() or ())

        for metadata, share in ((alice, 2), (bob, 1)):
            for number in range(share):
                assert not stream(metadata).ask(f"s{number}", [1, 2]).HasField("error")
            error = refused(metadata)
            assert isinstance(error, LimitExceededError)
            assert "as many as it leaves to others" in str(error)


# -- drivers


def test_a_generation_goes_on_without_drafts_and_says_so_once(
    engine: DraftEngine, tokens: TokenFile, tiny_target: LlamaTarget
) -> None:
    prompt = talkative_prompt(tiny_target, 60)
    plain = generate(tiny_target, prompt, max_tokens=60)
    token = tokens.create("alice")
    with (
        open_to(engine, tokens) as address,
        DraftWorkerClient(address, ClientIdentity(token)) as client,
        structlog.testing.capture_logs() as logs,
    ):
        layer = DraftModelLayer(client, tiny_target.model.vocabulary, p_min=0.0, timeout_seconds=PATIENCE_S)

        def revoked(_step: object) -> None:
            if tokens.path.exists() and len(tokens.read()):
                tokens.revoke([token])
            # until the worker has ended the stream, and refused the next one
            if not isinstance(layer.session.last_error, UnauthenticatedError):
                layer.session.draft(1, 1.0)

        result = generate(
            tiny_target,
            prompt,
            DriverConfig(policy=Policy.FIRST_MATCH, k_start=4, k_max=4),
            [layer],
            max_tokens=60,
            curve=CostCurve.linear(0.05, 32),
            on_step=revoked,
        )

        def refused() -> bool:
            layer.session.draft(1, 1.0)
            return isinstance(layer.session.last_error, UnauthenticatedError)

        eventually(refused, "the refusal is met")
        layer.close()
    assert result.token_ids == plain.token_ids
    refusals = [line for line in logs if "UnauthenticatedError" in str(line.get("error"))]
    assert len(refusals) == 1
    assert refusals[0]["event"] == "a draft worker failed; decoding goes on without it"
    assert not client.up


def test_a_pool_says_that_it_is_refused_and_goes_on_with_those_that_know_it(
    engine: DraftEngine, tokens: TokenFile, vocabulary: Vocabulary, socket_path: str
) -> None:
    beside = DraftEngine(engine.model.path, SETTINGS)
    with contextlib.closing(beside), open_to(engine, tokens) as closed:
        with WorkerPool([closed, f"{closed.replace('127.0.0.1', 'localhost')}"], identity=ANONYMOUS) as pool:
            with pytest.raises(UnauthenticatedError) as refused:
                pool.check_vocabulary(vocabulary)
            assert "suffixsvc token create" in str(refused.value.remedy)
        with (
            worker(beside, WorkerEdge(), f"unix:{socket_path}") as open_one,
            WorkerPool([closed, open_one], identity=ANONYMOUS) as pool,
        ):
            pool.check_vocabulary(vocabulary)
            assert any("must present a token" in status.reason for status in pool.status())


# -- the command


def command(model: Path, *options: str) -> list[str]:
    run = [sys.executable, "-m", "suffixsvc_cli", "draft-worker", "--model", str(model), "--context", "512"]
    return [*run, *options]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--listen", "0.0.0.0:0"), "--tls-cert"),
        (("--listen", "0.0.0.0:0", "--tokens", "none.toml"), "--insecure-network"),
        (("--listen", "127.0.0.1:0", "--tls-cert", "none.pem"), "must be given together"),
        (
            ("--listen", "127.0.0.1:0", "--tls-cert", "none.pem", "--tls-key", "n.key"),
            "must be a readable file",
        ),
        (("--listen", "127.0.0.1:0", "--policies", "none.toml"), "none.toml"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_the_model_is_loaded(
    tmp_path: Path, options: tuple[str, ...], error: str
) -> None:
    ran = subprocess.run(
        command(tmp_path / "no-model.gguf", *options),
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert ran.returncode != 0
    assert error in ran.stderr.replace("\n", " "), ran.stderr


def test_the_command_with_tokens_and_certificates(
    tiny_model: Path, tmp_path: Path, tokens: TokenFile, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an address that other machines can reach; the client's identity is that of the environment."""
    ready, tls = tmp_path / "ready.json", files.server()
    options = ["--listen", "0.0.0.0:0", "--ready-file", str(ready), "--tokens", str(tokens.path)]
    options += ["--tls-cert", str(tls.certificate), "--tls-key", str(tls.key), "--busy-after-ms", "100000"]
    process = subprocess.Popen(command(tiny_model, *options))
    try:
        eventually(lambda: ready.exists() or process.poll() is not None, "the worker is ready")
        [bound] = json.loads(ready.read_text())["addresses"]
        address = f"127.0.0.1:{bound.rpartition(':')[2]}"
        monkeypatch.setenv("SUFFIXSVC_TLS_CA", str(files.ca))
        with DraftWorkerClient(address) as client, pytest.raises(UnauthenticatedError):
            client.describe()
        held = tmp_path / "token"
        held.write_text(tokens.create("alice"))
        monkeypatch.setenv("SUFFIXSVC_TOKEN_FILE", str(held))
        with DraftWorkerClient(address) as client:
            session = client.open_session(p_min=0.0)
            session.set_text(TEXT)
            eventually(lambda: len(session.draft(3, PATIENCE_S)) == 3, "it drafts")
            session.close()
            errors: list[SuffixError | None] = []
            tokens.revoke([token.id for token in tokens.read()])
            again = client.open_session(p_min=0.0)
            again.set_text(TEXT)

            def refused() -> bool:
                again.draft(3, 1.0)
                errors.append(again.last_error)
                return isinstance(again.last_error, UnauthenticatedError)

            eventually(refused, "the revoked token is refused")
            again.close()
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
