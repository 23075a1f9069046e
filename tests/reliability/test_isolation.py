"""Row "isolation": no token, no name and no count of a namespace reaches a principal without a grant.

What remains is time: differences that an attacker can measure are reported, beside those of equal calls.
"""

from __future__ import annotations

import contextlib
import io
import queue
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from suffixsvc import NewOutput, wire
from suffixsvc.access.grants import Grant
from suffixsvc.access.tokens import TokenFile
from suffixsvc.errors import PermissionDeniedError, SuffixError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.selection import Selection
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc, types_pb2, watch_pb2
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.transport.interface import error_from_rpc
from support.idle_calls import connection
from support.isolation import GRANTS, RESTRICTED, check_isolation, isolated_service
from support.measured_servers import MeasuredServer, measured_server
from support.timing_differences import WARM_CALLS, difference
from support.watching import hello

Figure = Callable[[str, object, str], None]
SECRET = "victim/secret"
#: every token of the victim is below, every one of the attacker above
FIRST_OWN_TOKEN = 100_000
OUTPUT_TOKENS = 120
#: tokens of a timed step
STEP = 8


def test_random_policies(tmp_path: Path, full: bool, figure: Figure) -> None:
    examples, denied = 0, 0
    with isolated_service(tmp_path) as service:

        @settings(
            max_examples=1000 if full else 15,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),
            database=None,
        )
        @given(GRANTS, RESTRICTED)
        def check(grants: list[Grant], restricted: set[str]) -> None:
            nonlocal examples, denied
            denied += check_isolation(service, grants, restricted)
            examples += 1

        check()
    figure("random policies", examples, "")
    figure("namespaces read without a right", denied, "no token, no name")


# ---------------------------------------------------------------------------------------- the attacker


class Attack:
    """A service, its victim and its attacker.

    Attributes:
        texts: outputs of the victim.
        live: what a live session of the victim has written.
        tokens: bearer tokens by principal.
    """

    def __init__(self, server: MeasuredServer, tokens: dict[str, str]) -> None:
        self.server = server
        self.tokens = tokens
        self.rng = np.random.default_rng(7)
        self.live = self.secret()
        self.victim = self.client("victim")
        self.mallory = self.client("mallory")
        namespace = self.victim.namespace(SECRET)
        self.texts = self.stored(50)
        self._session = namespace.open_session([1, 2, 3], session_id="guessed")
        self._session.step(self.live)

    def secret(self) -> list[int]:
        return list(self.rng.integers(1000, FIRST_OWN_TOKEN, OUTPUT_TOKENS).tolist())

    def stored(self, count: int) -> list[list[int]]:
        """New outputs of the victim."""
        texts = [self.secret() for _ in range(count)]
        nothing = np.empty(0, np.int32)
        self.victim.namespace(SECRET).add_outputs(
            [NewOutput(SECRET, np.array(text, np.int32), (len(text),), nothing) for text in texts]
        )
        return texts

    def client(self, principal: str) -> SuffixClient:
        identity = ClientIdentity(token=self.tokens[principal])
        return SuffixClient(
            self.server.address, ClientConfig(step_timeout_s=60, open_timeout_s=60, identity=identity)
        )

    def metadata(self, principal: str) -> Any:
        return ClientIdentity(token=self.tokens[principal]).credential().metadata

    def close(self) -> None:
        self._session.close(commit=False)
        self.victim.close()
        self.mallory.close()


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    folder = tmp_path_factory.mktemp("attack")
    file, policies = TokenFile(folder / "tokens.toml"), folder / "policies.toml"
    tokens = {name: file.create(name) for name in ("victim", "mallory", "other")}
    policies.write_text('[principals.mallory]\nread = ["public"]\nwrite = ["public/inbox"]\n')
    options = ("--data", str(folder / "data"), "--tokens", str(file.path), "--policies", str(policies))
    with measured_server(folder, "serve", *options) as server:
        attack = Attack(server, tokens)
        yield attack
        attack.close()


def _guesses(attack: Attack, count: int) -> Iterator[list[int]]:
    """True contexts of the victim, of every length, and their beginnings with a wrong token."""
    choice = random.Random(1)
    for number in range(count):
        text = choice.choice([*attack.texts, attack.live])
        size = choice.randint(1, OUTPUT_TOKENS - 20)
        at = choice.randint(0, OUTPUT_TOKENS - 20 - size)
        guess = text[at : at + size]
        yield guess if number % 4 else [*guess[:-1], FIRST_OWN_TOKEN, guess[-1]]


def test_guessed_contexts(attack: Attack, full: bool, figure: Figure) -> None:
    """Every draft of the attacker holds tokens only that it sent itself."""
    guesses = 20_000 if full else 400
    secret = {token for text in (*attack.texts, attack.live) for token in text}
    mallory, leaked, drafted, sent = attack.mallory, set[int](), 0, set[int]()
    session = mallory.namespace("mallory/own").open_session([1, 2, 3])
    for number, guess in enumerate(_guesses(attack, guesses)):
        if number % 50 == 49:
            session.close()  # stored: what it sent can be drafted in its own namespace from now on
            session = mallory.namespace("mallory/own").open_session(guess)
        sent |= set(guess)
        found = set(session.step(guess, max_draft_tokens=16).token_ids.tolist())
        drafted += bool(found)
        leaked |= (found & secret) - sent
    session.close(commit=False)
    figure("guessed contexts of another principal", guesses, "")
    figure("drafts from the attacker's own text", drafted, "")
    figure("tokens of the other principal", len(leaked), "0")
    assert not leaked
    assert not mallory.counts.empty

    # the same contexts are answered to their owner: the guesses were right
    own = attack.victim.namespace(SECRET).open_session([1, 2, 3], private=True)
    answered = own.step(attack.texts[0][:20], max_draft_tokens=16).token_ids.tolist()
    own.close(commit=False)
    assert answered == attack.texts[0][20 : 20 + len(answered)]
    assert answered


def _calls(attack: Attack, path: str, folder: Path) -> dict[str, Callable[[], object]]:
    """Everything that the attacker can ask about a namespace."""
    client = attack.mallory
    namespace = client.namespace(path)
    own = client.namespace("mallory/own")
    return {
        "open": lambda: namespace.open_session([1]),
        "open privately": lambda: namespace.open_session([1], private=True),
        "open beside": lambda: own.open_session([1], reads=[path]),
        "write": lambda: namespace.add_output([FIRST_OWN_TOKEN]),
        "stats": namespace.stats,
        "export": lambda: namespace.export_ngrams([RecordFile(order=2, slots=4)], [io.BytesIO()]),
        "delete": lambda: namespace.delete(output_ids=[1]),
        "delete by session": lambda: client.delete(Selection(path, session_id="guessed")),
        "delete namespace": lambda: client.delete_namespace(path, force=True),
        "backup": lambda: client.backup(folder / "backup"),
        "fetch": lambda: _raw(attack, "FetchSegment", watch_pb2.FetchSegmentRequest(namespace=path)),
        "watch": lambda: _watch(attack, path),
    }


def _raw(attack: Attack, method: str, request: Any) -> list[Any]:
    with connection(attack.server.address) as channel:
        call: Any = getattr(suffix_cache_pb2_grpc.SuffixCacheStub(channel), method)
        try:
            return list(call(request, metadata=attack.metadata("mallory"), timeout=60))
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None


def _watch(attack: Attack, path: str) -> None:
    """Follow; the requests stay open, because a service need not answer all of them once they have ended."""
    requests: queue.SimpleQueue[watch_pb2.WatchRequest | None] = queue.SimpleQueue()
    requests.put(hello())
    requests.put(watch_pb2.WatchRequest(follow=watch_pb2.FollowNamespace(namespace=path)))
    with connection(attack.server.address) as channel:
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        call: Any = stub.Watch(iter(requests.get, None), metadata=attack.metadata("mallory"), timeout=60)
        try:
            for reply in call:
                if reply.HasField("refused"):
                    raise wire.error_from_detail(reply.refused.error)
                assert reply.WhichOneof("reply") == "welcome"
        finally:
            requests.put(None)
            call.cancel()


def _denial(call: Callable[[], object], what: str) -> str:
    """The error of a call that must be denied."""
    try:
        call()
    except PermissionDeniedError as error:
        return str(wire.detail_from_error(error))
    raise AssertionError(f"not denied: {what}")


def test_names_and_rights(attack: Attack, tmp_path: Path, figure: Figure) -> None:
    """An error is the same for a namespace that exists and for one that does not, in every call."""
    absent = "victim/absent"
    found = {}
    for path in (SECRET, absent, "victim", "other/x"):
        answers = {}
        for name, call in _calls(attack, path, tmp_path).items():
            answers[name] = _denial(call, f"{name} {path}").replace(path, "PATH")
        found[path] = answers
    assert all(answers == found[absent] for answers in found.values())
    assert [record.path for record in attack.mallory.namespaces()] in ([], ["mallory/own"])
    figure("calls about a namespace that exists or does not", len(found[SECRET]), "equal errors")


def test_sessions_of_others(attack: Attack, figure: Figure) -> None:
    """An id of the victim's session is unknown to the attacker, in unary calls and on a stream."""
    ids = wire.pack_tokens(np.array(attack.live[:4], np.int32))
    step = pb.StepRequest(session_id="guessed", new_token_ids=ids, max_draft_tokens=8)
    append = pb.AppendContextRequest(session_id="guessed", token_ids=ids)
    close = pb.CloseSessionRequest(session_id="guessed", discard=True)
    refused = 0
    with connection(attack.server.address) as channel:
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        for method, request in (("Step", step), ("AppendContext", append), ("CloseSession", close)):
            with pytest.raises(grpc.RpcError) as raised:
                getattr(stub, method)(request, metadata=attack.metadata("mallory"), timeout=60)
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND
            refused += 1
        messages = [
            pb.StreamRequest(id=1, steps=pb.StepBatch(items=[step])),
            pb.StreamRequest(id=2, append_context=append),
            pb.StreamRequest(id=3, close=close),
        ]
        call: Any = stub.Stream(iter(messages), metadata=attack.metadata("mallory"), timeout=60)
        for reply in call:
            item = reply.steps.items[0].error.error if reply.HasField("steps") else reply.error
            assert item.code == types_pb2.ERROR_CODE_UNKNOWN_SESSION
            refused += 1
    figure("calls with the id of another's session", refused, "unknown")
    assert attack.victim.namespace(SECRET).stats().sessions >= 1


def test_statistics_do_not_move(attack: Attack, figure: Figure) -> None:
    """What the victim writes shows in nothing that the attacker may read."""
    own = attack.mallory.namespace("mallory/counted")
    own.add_output([FIRST_OWN_TOKEN] * 3)
    before = own.stats(), attack.mallory.server_info()
    for _ in range(20):
        text = attack.secret()
        attack.victim.namespace(SECRET).add_output(text)
    assert (own.stats(), attack.mallory.server_info()) == before
    with pytest.raises(SuffixError):
        attack.mallory.stats()
    figure("statistics while another principal writes", "unchanged", "unchanged")


# ---------------------------------------------------------------------------------------------- timing


def test_timing(attack: Attack, full: bool, figure: Figure) -> None:
    """Alternating calls; the control compares two calls that are equal by construction."""
    samples = 20_000 if full else 400
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(connection(attack.server.address))
        for what, make in _pairs(attack, channel, samples).items():
            subject, control = make()
            found, equal = difference(*subject, samples), difference(*control, samples)
            figure(f"{what}, of {1e6 * found.median:.0f} us", found, "")
            figure("    control: equal calls", equal, "")


Pair = tuple[Callable[[], object], Callable[[], object]]


def _pairs(attack: Attack, channel: grpc.Channel, samples: int) -> dict[str, Callable[[], tuple[Pair, Pair]]]:
    """By what differs: the pair of calls, and the pair of its control.

    Requests are made beforehand, and each text is sent once: its second copy would be the attacker's own.
    """
    stub: Any = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
    metadata = attack.metadata("mallory")
    most = samples + WARM_CALLS

    def denied(method: str, request: Any) -> Callable[[], object]:
        def call() -> object:
            try:
                return getattr(stub, method)(request, metadata=metadata, timeout=60)
            except grpc.RpcError as error:
                return error

        assert call().code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]  # an RpcError
        return call

    def names(method: str, make: Callable[[str], Any]) -> Callable[[], tuple[Pair, Pair]]:
        there, absent, other = (
            denied(method, make(f"victim/{end}")) for end in ("secret", "absent", "remote")
        )
        return lambda: ((absent, there), (absent, other))

    def step(texts: list[list[int]]) -> Callable[[], object]:
        name = str(uuid.uuid4())
        opening = pb.OpenSessionRequest(namespace="mallory/timed", session_id=name, private=True)
        stub.OpenSession(opening, metadata=metadata, timeout=60)
        parts = [text[at : at + STEP] for text in texts for at in range(0, OUTPUT_TOKENS, STEP)]
        requests = iter(
            [
                pb.StepRequest(session_id=name, new_token_ids=_packed(part), max_draft_tokens=8)
                for part in parts[:most]
            ]
        )
        return lambda: stub.Step(next(requests), metadata=metadata, timeout=60)

    def write(texts: list[list[int]]) -> Callable[[], object]:
        requests = iter(
            [
                pb.AddOutputsRequest(
                    namespace="mallory/timed", outputs=[pb.OutputItem(token_ids=_packed(each))]
                )
                for each in texts[:most]
            ]
        )
        return lambda: stub.AddOutputs(iter([next(requests)]), metadata=metadata, timeout=60)

    def texts_of(make: Callable[[list[list[int]]], Callable[[], object]]) -> Callable[[], tuple[Pair, Pair]]:
        needed = most if make is write else most * STEP // OUTPUT_TOKENS + 1
        fresh = [[attack.secret() for _ in range(needed)] for _ in range(3)]
        return lambda: (
            (make(fresh[0]), make(attack.stored(needed))),
            (make(fresh[1]), make(fresh[2])),
        )

    return {
        "denied statistics: exists / does not": names(
            "GetStats", lambda path: pb.GetStatsRequest(namespace=path)
        ),
        "denied open: exists / does not": names(
            "OpenSession", lambda path: pb.OpenSessionRequest(namespace=path)
        ),
        "step: context another stored / new": texts_of(step),
        "write: output another stored / new": texts_of(write),
    }


def _packed(ids: list[int]) -> bytes:
    return wire.pack_tokens(np.array(ids, np.int32))
