"""Incomplete outputs of drained sessions after a restart: replaced, retained or discarded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import Limits, SuffixCache
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.errors import StoreError, UnknownSessionError
from suffixsvc.policies import Policies, Policy
from suffixsvc.runtime.sync_points import with_sync_points
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.sessions import failed_closes
from suffixsvc.v1 import suffix_cache_pb2 as pb
from support.engine_parts import parts_of
from support.failing_disk import FailingDisk
from support.serving import eventually

PROMPT = [1, 2, 3]
TEXT = list(range(100, 160))
NS = "a"
#: a namespace with room for an output of 1000 tokens, not of 3000
LIMITED = "limited"
POLICIES = Policies({LIMITED: Policy(max_bytes=200_000, pinned=True)})


class Service:
    """Handlers over a folder, as ``suffixsvc serve`` creates them."""

    def __init__(self, folder: Path) -> None:
        self.disk = FailingDisk()
        self.cache = with_sync_points(SuffixCache, self.disk)(folder, policies=POLICIES, background=False)
        self.handlers = Handlers(self.cache, Limits(), durable=True)

    def open(
        self,
        output: list[int],
        prompt: list[int] = PROMPT,
        session_id: str = "mine",
        namespace: str = NS,
    ) -> None:
        self.handlers.open_session(
            pb.OpenSessionRequest(
                namespace=namespace,
                prompt_token_ids=packed(prompt),
                output_token_ids=packed(output),
                session_id=session_id,
            ),
            OPERATOR_CALLER,
        )

    def step(self, tokens: list[int], session_id: str = "mine") -> None:
        request = pb.StepRequest(session_id=session_id, new_token_ids=packed(tokens), max_draft_tokens=0)
        self.handlers.step(request, OPERATOR_CALLER)

    def append_context(self, tokens: list[int], session_id: str = "mine") -> None:
        request = pb.AppendContextRequest(session_id=session_id, token_ids=packed(tokens))
        self.handlers.append_context(request, OPERATOR_CALLER)

    def close(self, session_id: str = "mine", *, discard: bool = False, no_wait: bool = False) -> int | None:
        request = pb.CloseSessionRequest(session_id=session_id, discard=discard, no_wait=no_wait)
        reply = self.handlers.close_session(request, OPERATOR_CALLER)
        return reply.output_id if reply.HasField("output_id") else None

    def writes(self) -> bool:
        try:
            self.cache.namespace("w").add_output([1])
        except StoreError:
            return False
        return True

    def discarded(self) -> bool:
        try:
            return self.close(discard=True) is None
        except StoreError:
            return False

    def expire(self) -> int:
        """Expire all sessions."""
        return self.handlers.sessions.expire(time.monotonic() + 1e6)

    def outputs(self, namespace: str = NS) -> list[tuple[list[int], bool]]:
        """Tokens of the outputs in the log, and whether they are incomplete."""
        stored = parts_of(self.cache).store.scan(namespace)
        return [(each.output.token_ids.tolist(), each.output.incomplete) for each in stored]


def packed(tokens: list[int]) -> bytes:
    return np.asarray(tokens, dtype="<i4").tobytes()


Restart = Callable[[], Service]


@pytest.fixture
def restart(tmp_path: Path) -> Iterator[Restart]:
    """Drains the service that runs, and starts the next one on its folder."""
    running: list[Service] = []

    def again() -> Service:
        if running:
            running[-1].handlers.sessions.drain()
            running[-1].cache.check()
            running[-1].cache.close()
        running.append(Service(tmp_path / "data"))
        return running[-1]

    yield again
    running[-1].cache.check()
    running[-1].cache.close()


@pytest.fixture
def drained(restart: Restart) -> Service:
    """A service that was restarted while a session had written TEXT."""
    service = restart()
    service.open([])
    service.step(TEXT)
    service = restart()
    assert service.outputs() == [(TEXT, True)]
    return service


def test_a_resumed_session_replaces_the_drained_output(drained: Service) -> None:
    """What happened: the rule was in memory only. After a restart the log had the first part as well as the
    whole, permanently, and drafts counted it twice."""
    drained.open(TEXT)
    drained.step([7, 8])
    assert drained.close() == 2
    assert drained.outputs() == [([*TEXT, 7, 8], False)]


def test_a_resumed_session_that_is_discarded_leaves_nothing(drained: Service) -> None:
    drained.open(TEXT)
    assert drained.close(discard=True) is None
    assert drained.outputs() == []


def test_a_resumed_session_that_does_not_wait_replaces_it_too(drained: Service) -> None:
    drained.open(TEXT)
    drained.step([7, 8])
    drained.close(no_wait=True)
    drained.cache.check()
    assert drained.outputs() == [([*TEXT, 7, 8], False)]


@pytest.mark.parametrize("no_wait", [False, True])
def test_a_replacement_refused_by_limits_leaves_the_drained_output(restart: Restart, no_wait: bool) -> None:
    """What happened: a close without waiting forgot the incomplete output at once. If a limit refused the
    longer one, the namespace had neither: an acknowledged output was lost."""
    text = list(range(1000))
    restart().open(text, namespace=LIMITED)
    service = restart()
    service.open([*text, *range(5000, 7000)], namespace=LIMITED)
    assert service.close(no_wait=no_wait) is None
    assert service.outputs(LIMITED) == [(text, True)]
    assert service.cache.namespace(LIMITED).stats().refused_outputs == 1


@pytest.mark.parametrize(
    ("text", "kept", "reason"),
    [
        (range(100), 1, "idle and its output is stored as incomplete"),
        (range(3000), 0, "idle and its output was not stored: a limit was reached"),
        (range(0), 0, "idle and had no output"),
    ],
)
def test_an_expired_session_is_reported_as_stored_only_if_it_is(
    restart: Restart, text: range, kept: int, reason: str
) -> None:
    """What happened: a session whose output a limit refused was reported as stored, to its client and in the
    log's count of sessions committed as incomplete."""
    service = restart()
    service.open(list(text), namespace=LIMITED)
    assert service.expire() == kept
    assert len(service.handlers.sessions.table) == 0
    with pytest.raises(UnknownSessionError, match=reason):
        service.step([1])
    assert service.cache.stats().outputs == kept


def test_a_drain_counts_stored_outputs(restart: Restart) -> None:
    """What happened: it counted sessions without an output, and those whose output a limit refused."""
    service = restart()
    for name, length in (("short", 100), ("long", 3000), ("empty", 0)):
        service.open(list(range(length)), session_id=name, namespace=LIMITED)
    assert service.handlers.sessions.drain() == 1
    assert len(service.handlers.sessions.table) == 0


@pytest.mark.parametrize("no_wait", [False, True])
def test_a_replacement_that_cannot_be_stored_leaves_the_drained_output(
    drained: Service, no_wait: bool
) -> None:
    """The same with a failing disk: the close without waiting reported success. Now the session stays open,
    and closing it again replaces the incomplete output."""
    drained.open(TEXT)
    drained.step([7, 8])
    drained.disk.failing.set()
    with pytest.raises(StoreError):
        drained.close(no_wait=no_wait)
    drained.disk.failing.clear()
    assert drained.outputs() == [(TEXT, True)]
    eventually(drained.writes, "the store has recovered")
    drained.close(no_wait=no_wait)
    drained.cache.check()
    assert drained.outputs() == [([*TEXT, 7, 8], False)]


def test_a_session_can_be_discarded_without_being_resumed(drained: Service) -> None:
    """As it can while the service that expired it still runs."""
    assert drained.close(discard=True) is None
    assert drained.outputs() == []
    assert drained.close(discard=True) is None, "the same again"
    with pytest.raises(UnknownSessionError):
        drained.close("another", discard=True)
    with pytest.raises(UnknownSessionError):
        drained.close("another")


def test_a_resumed_session_whose_output_was_lost_can_be_discarded(
    drained: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened: the store failed, the resumed session was released without its output, and its discard
    was refused as of an unknown session: the drain's output stayed, and was drafted from."""
    monkeypatch.setattr(failed_closes, "MAX_FAILED_CLOSE_BYTES", 10)  # released at once
    drained.open(TEXT)
    drained.step([7, 8])
    drained.disk.failing.set()
    with pytest.raises(StoreError):
        drained.close()
    assert drained.handlers.sessions.failed_closes.lost == 1
    drained.disk.failing.clear()
    eventually(lambda: drained.discarded(), "the store has recovered")
    assert drained.outputs() == []
    assert drained.close(discard=True) is None, "the same again"


OTHERS = [("b", PROMPT), (NS, [7, 8])]
OTHER_SESSIONS = [*OTHERS, (NS, PROMPT)]  # the last one writes other text


@pytest.mark.parametrize(("namespace", "prompt"), OTHERS)
@pytest.mark.parametrize("restarted", [False, True])
def test_discarding_an_empty_session_leaves_other_outputs_of_its_id(
    restart: Restart, namespace: str, prompt: list[int], restarted: bool
) -> None:
    """What happened: a session expired and left its output. Another session of the same id, in another
    namespace or with another prompt, expired without output and was discarded: the output of the first one
    was deleted, even if it was another tenant's."""
    service = restart()
    service.open(TEXT)
    if restarted:
        service = restart()
    else:
        assert service.expire() == 1
    service.open([], prompt, namespace=namespace)
    assert service.expire() == 0
    with pytest.raises(UnknownSessionError):
        service.close(discard=True)
    assert service.outputs() == [(TEXT, True)]


@pytest.mark.parametrize(("namespace", "prompt"), OTHER_SESSIONS)
@pytest.mark.parametrize("again", [False, True])
def test_discarding_a_lost_session_leaves_other_outputs_of_its_id(
    drained: Service, monkeypatch: pytest.MonkeyPatch, namespace: str, prompt: list[int], again: bool
) -> None:
    """The same if the other session's output could not be stored, even if the first session expired in this
    process."""
    if again:
        drained.open(TEXT)
        assert drained.expire() == 1
    monkeypatch.setattr(failed_closes, "MAX_FAILED_CLOSE_BYTES", 10)  # released at once
    drained.cache.namespace(namespace).add_output([1])  # the namespace exists
    drained.open([5, 6], prompt, namespace=namespace)
    drained.disk.failing.set()
    with pytest.raises(StoreError):
        drained.close()
    assert drained.handlers.sessions.failed_closes.lost == 1
    drained.disk.failing.clear()
    with pytest.raises(UnknownSessionError):
        drained.close(discard=True)
    eventually(drained.writes, "the store has recovered")
    assert (TEXT, True) in drained.outputs()


def test_discarding_an_empty_session_forgets_its_own_output(restart: Restart) -> None:
    """The same namespace and prompt: the client opened it again, and wrote nothing before it gave up."""
    service = restart()
    service.open(TEXT)
    assert service.expire() == 1
    for _ in range(2):
        service.open([])
        assert service.expire() == 0
    assert service.outputs() == [(TEXT, True)]
    assert service.close(discard=True) is None
    assert service.outputs() == []


def test_an_ambiguous_discard_after_a_restart_is_refused(
    restart: Restart,
) -> None:
    """What happened: the last output was deleted, whichever session the client meant. A session that is
    opened again identifies its output."""
    service = restart()
    service.open(TEXT)
    assert service.expire() == 1
    service.open([5, 6], namespace="b")
    service = restart()
    with pytest.raises(UnknownSessionError, match="several namespaces") as caught:
        service.close(discard=True)
    assert caught.value.remedy
    assert (service.outputs(), service.outputs("b")) == ([(TEXT, True)], [([5, 6], True)])
    service.open(TEXT)
    assert service.close(discard=True) is None
    assert (service.outputs(), service.outputs("b")) == ([], [([5, 6], True)])


def test_one_restart_after_the_other(drained: Service, restart: Restart) -> None:
    """Each drain replaces the output of the previous one, unless no token was added."""
    drained.open(TEXT)
    drained.step([7])
    service = restart()
    assert service.outputs() == [([*TEXT, 7], True)]
    service.open([*TEXT, 7])
    service = restart()
    assert service.outputs() == [([*TEXT, 7], True)]
    service.open([*TEXT, 7])
    service.close()
    assert service.outputs() == [([*TEXT, 7], False)]


def test_a_close_repeated_after_a_restart_stores_one_output(restart: Restart) -> None:
    """Committed, and the service ended before it could answer: the client resumes and closes again."""
    service = restart()
    service.open([])
    service.step(TEXT)
    first = service.close()
    service = restart()
    service.open(TEXT)
    assert service.close() == first
    assert service.outputs() == [(TEXT, False)]


def test_context_is_part_of_the_resumed_text(restart: Restart) -> None:
    service = restart()
    service.open([])
    service.step(TEXT)
    service.append_context([50, 51])
    service.step([7, 8])
    service = restart()
    service.open([*TEXT, 50, 51, 7, 8])
    service.close()
    assert service.outputs() == [([*TEXT, 50, 51, 7, 8], False)]


def test_an_output_that_is_not_continued_stays(drained: Service) -> None:
    """The same id for other text: neither is lost."""
    drained.open([5, 6, 7])
    drained.close()
    assert drained.outputs() == [(TEXT, True), ([5, 6, 7], False)]


def test_the_next_turn_of_a_conversation_replaces_nothing(drained: Service) -> None:
    """Its prompt is the whole conversation so far, so that its output does not contain the incomplete one."""
    drained.open([], prompt=[*PROMPT, *TEXT])
    drained.step([9])
    drained.close()
    assert drained.outputs() == [(TEXT, True), ([9], False)]


def test_another_session_with_the_same_text_does_not_replace_it(drained: Service) -> None:
    drained.open(TEXT, session_id="yours")
    drained.close("yours")
    assert drained.outputs() == [(TEXT, True), (TEXT, False)]
