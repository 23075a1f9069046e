"""Row "wire": malformed messages, floods and silence on every port; the servers answer, and nothing grows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from suffixsvc import wire
from suffixsvc.v1 import draft_worker_pb2, suffix_cache_pb2, watch_pb2
from suffixsvc_client import SuffixClient
from support import hostile_grpc, hostile_http
from support.measured_servers import MeasuredServer, Prober, measured_server
from support.openai_serving import CYCLE
from support.process_usage import Usage, UsageSampler
from support.serving import eventually
from support.tiny_gguf import chain_of, write_tiny_chain

pb = suffix_cache_pb2
#: malformed messages of a round by server: of the long form, 100,000 in ten rounds, and of the short one
MESSAGES = {"serve": (6_000, 1_200), "openai": (2_000, 120), "draft-worker": (2_000, 500)}
#: memory that a process may hold more after the last round than after the first
GROWTH_BYTES = 24 << 20
#: the same at any time, for the messages that are being read and answered
PEAK_BYTES = 512 << 20
#: descriptors: those of a task that happens to run
SPARE = 8
#: share of threads: pools have as many as there were calls at the same time
THREADS = 0.1
IDLE = 64

Figure = Callable[[str, object, str], None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chain(tmp_path_factory.mktemp("wire") / "cycle.gguf", chain_of(CYCLE), context=4096)


def _methods(*modules: Any) -> tuple[Any, ...]:
    services = (service for module in modules for service in module.DESCRIPTOR.services_by_name.values())
    return tuple(method for service in services for method in service.methods)


def _seeds() -> dict[str, tuple[Message, ...]]:
    """Requests that a service answers, of a namespace that has outputs."""
    ids = wire.pack_tokens(np.arange(100, 130, dtype=np.int32))
    opening = pb.OpenSessionRequest(namespace="a", session_id="a", prompt_token_ids=ids[:8])
    step = pb.StepRequest(session_id="a", new_token_ids=ids[:8], max_draft_tokens=8)
    append = pb.AppendContextRequest(session_id="a", token_ids=ids[:8])
    close = pb.CloseSessionRequest(session_id="a")
    output = pb.OutputItem(token_ids=ids, prompt_token_ids=ids[:8], labels={"agent": "x"}, segment_lens=[30])
    report = watch_pb2.FollowerReport(used=[watch_pb2.NamespaceUse(namespace="a", output_ids=bytes(16))])
    return {
        "OpenSession": (opening,),
        "Step": (step,),
        "AppendContext": (append,),
        "CloseSession": (close, pb.CloseSessionRequest(session_id="a", discard=True)),
        "Stream": (
            pb.StreamRequest(id=1, open=opening),
            pb.StreamRequest(id=2, steps=pb.StepBatch(items=[step])),
            pb.StreamRequest(id=3, append_context=append),
            pb.StreamRequest(id=4, close=close),
        ),
        "AddOutputs": (pb.AddOutputsRequest(namespace="a", outputs=[output]),),
        "ExportNgrams": (pb.ExportNgramsRequest(namespace="a", files=[pb.NgramFile(order=2, slots=4)]),),
        "Delete": (pb.DeleteRequest(selection=pb.Selection(namespace="b", session_id="a")),),
        "DeleteNamespace": (pb.DeleteNamespaceRequest(namespace="b", force=True),),
        "ListNamespaces": (pb.ListNamespacesRequest(prefix="a"),),
        "GetStats": (pb.GetStatsRequest(namespace="a"),),
        "Watch": (
            watch_pb2.WatchRequest(hello=watch_pb2.WatchHello(protocol=1, follower_id="f")),
            watch_pb2.WatchRequest(follow=watch_pb2.FollowNamespace(namespace="a")),
            watch_pb2.WatchRequest(report=report),
        ),
        "FetchSegment": (watch_pb2.FetchSegmentRequest(namespace="a", name="x.seg"),),
        "Draft": (
            draft_worker_pb2.WorkerDraftRequest(
                seq=1, session_id="a", new_token_ids=bytes(8), max_draft_tokens=4, timeout_seconds=0.5
            ),
        ),
    }


def _forbidden(message: Message) -> bool:
    """A backup is written where the caller says, and a namespace of the slow readers must not go."""
    return isinstance(message, pb.BackupRequest) and message.folder.startswith(b"/")


def _attack(target: Any, attacks: Sequence[Any], messages: int) -> int:
    return sum(attack(target, max(1, round(messages * share))) for attack, share in attacks)


@contextlib.contextmanager
def _fresh(server: MeasuredServer, kind: str, model: Path) -> Iterator[tuple[Any, Sequence[Any], Any]]:
    """The target, its attacks, and what is held meanwhile."""
    if kind == "openai":
        yield hostile_http.Target(server.address, model.stem), hostile_http.ATTACKS, hostile_http.held
        return
    methods = (
        _methods(suffix_cache_pb2, health_pb2, reflection_pb2)
        if kind == "serve"
        else _methods(draft_worker_pb2)
    )
    target = hostile_grpc.Target(server.address, methods, _seeds(), _forbidden)
    if kind == "serve":
        with SuffixClient(server.address) as client:
            for _ in range(20):
                client.namespace("a").add_output(np.random.default_rng(1).integers(0, 50_000, 2_000))
    yield target, hostile_grpc.ATTACKS, hostile_grpc.held


def _options(kind: str, model: Path, folder: Path) -> tuple[str, ...]:
    if kind == "openai":
        return (str(model), "--threads", "1", "--context", "256")
    if kind == "draft-worker":
        return ("--model", str(model), "--context", "512", "--queue", "2", "--drivers", "80")
    policies = folder / "policies.toml"
    policies.write_text('[default]\nmax_bytes = "4 MiB"\n')
    limits = ("--max-sessions", "64", "--session-idle-seconds", "4", "--max-session-tokens", "4096")
    return ("--data", str(folder / "data"), "--policies", str(policies), *limits)


def _at_rest(server: MeasuredServer, descriptors: int) -> Usage:
    """What a server holds when its clients have gone."""
    eventually(lambda: server.usage.descriptors <= descriptors + SPARE, "descriptors are closed")
    time.sleep(1.0)  # of tasks that run every second
    return server.usage


@pytest.mark.parametrize("kind", MESSAGES)
def test_hostile_clients(kind: str, model: Path, tmp_path: Path, full: bool, figure: Figure) -> None:
    """Rounds of all attacks. The first one is the warm-up: threads of pools start, and stay."""
    rounds = 11 if full else 3
    each = MESSAGES[kind][0 if full else 1]
    sent = 0
    with (
        measured_server(tmp_path, kind, *_options(kind, model, tmp_path)) as server,
        _fresh(server, kind, model) as (target, attacks, held),
        UsageSampler({"server": server.pid}, 0.1) as sampler,
        Prober(server) as prober,
    ):
        before = server.usage
        rest: list[Usage] = []
        for number in range(rounds):
            with held(target, IDLE):
                messages = _attack(target, attacks, each)
            sent += messages if number else 0
            rest.append(_at_rest(server, before.descriptors))
        assert server.child.running, server.child.tail()
        defects = [*target.defects, *server.defects()]
        peak = sampler.peak("server", lambda usage: usage.resident_bytes) - rest[0].resident_bytes
    first, last = rest[0], rest[-1]
    grown = last.anonymous_bytes - first.anonymous_bytes
    seconds = np.array(prober.seconds)

    def add(what: str, value: object, must: str = "") -> None:
        figure(f"{kind}: {what}", value, must)

    add("malformed messages", sent)
    add("health: answers, p50, longest", f"{len(seconds)}, {_ms(np.median(seconds))}, {_ms(seconds.max())}")
    add("health: probes without an answer", len(prober.failures), "0")
    add("internal errors, defects in the log", len(defects), "0")
    add("memory after the first round", _mib(first.anonymous_bytes))
    add("memory after the last round", f"{grown / 2**20:+.1f} MiB", f"<= {GROWTH_BYTES >> 20} MiB more")
    add("peak", f"{peak / 2**20:+.0f} MiB", f"<= {PEAK_BYTES >> 20} MiB more")
    add("descriptors", f"{first.descriptors} -> {last.descriptors}", f"<= {SPARE} more")
    # pools start threads for the most calls at a time so far, and keep them
    middle = rest[len(rest) // 2]
    add(
        "threads",
        f"{first.threads} -> {middle.threads} -> {last.threads}",
        f"then <= {SPARE} and {THREADS:.0%} more",
    )
    assert not prober.failures, prober.failures[:3]
    assert not defects, defects[:5]
    assert grown <= GROWTH_BYTES, [usage.anonymous_bytes >> 20 for usage in rest]
    assert peak <= PEAK_BYTES
    assert last.descriptors <= first.descriptors + SPARE
    assert last.threads <= middle.threads * (1 + THREADS) + SPARE


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
