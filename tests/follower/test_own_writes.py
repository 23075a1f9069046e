"""Outputs of local sessions: the row, the reply, the deletion and the segment arrive in every order."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from follower_testing import (
    PATH,
    Feeder,
    array,
    draft_of,
    open_local,
    require_equal,
    rows,
)

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidInputError, ServiceUnavailableError, StoreError
from suffixsvc.index import OnCommitted
from suffixsvc.types import NewOutput, OutputId
from suffixsvc_follower.contents.namespace_copy import NamespaceCopy
from suffixsvc_follower.contents.own_writes import OwnWrite

TEXT = list(range(100, 130))


class Closing:
    """A session of the follower that waits for its close in a thread."""

    def __init__(self, copy: NamespaceCopy, runs: int = 1, session_id: str = "local") -> None:
        self.copy = copy
        self.begun = threading.Semaphore(0)
        self.writes: list[OwnWrite] = []
        self.session = open_local(copy, [1, 2, 3], self._commit)
        for run in range(runs):
            if run:
                self.session.append_context([50, 51])
            self.session.step(TEXT[run * 10 :])
        self.session_id = session_id
        self.close()

    def _commit(
        self, output: NewOutput, on_committed: OnCommitted, _live_bytes: int
    ) -> Future[list[OutputId | None]]:
        write = self.copy.begin_own(output, on_committed)
        self.writes.append(write)
        self.begun.release()
        return write.future

    def close(self) -> None:
        self.result: list[OutputId | BaseException | None] = []
        self.thread = threading.Thread(target=self._close, daemon=True)
        self.thread.start()
        assert self.begun.acquire(timeout=60)

    def _close(self) -> None:
        try:
            self.result.append(self.session.close(session_id=self.session_id))
        except BaseException as error:
            self.result.append(error)

    @property
    def output(self) -> NewOutput:
        return self.writes[-1].output

    def wait(self) -> OutputId | BaseException | None:
        self.thread.join(60)
        [result] = self.result
        return result


class Scene:
    def __init__(self, cache: SuffixCache, runs: int) -> None:
        self.cache, self.copy = cache, NamespaceCopy(PATH)
        cache.namespace(PATH).add_output([1, 2])
        self.feeder = Feeder(cache, self.copy)
        self.feeder.catch_up()
        self.closing = Closing(self.copy, runs)
        [self.output_id] = cache.namespace(PATH).add_outputs([self.closing.output])

    def reply(self) -> None:
        self.copy.acknowledge(self.closing.output.uuid, self.output_id)

    def end(self) -> None:
        assert self.closing.wait() == self.output_id
        assert self.closing.session.closed
        self.feeder.catch_up()
        require_equal(self.copy, rows(self.cache))
        assert self.copy.pending_writes == 0


@pytest.fixture(params=[1, 2], ids=["one run", "two runs"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with SuffixCache(tmp_path / "d", background=False) as cache:
        yield Scene(cache, request.param)


def test_the_reply_comes_first(scene: Scene) -> None:
    scene.reply()
    assert scene.closing.wait() == scene.output_id
    assert scene.copy.outputs() == {1, scene.output_id}, "before its row"
    before = scene.copy.index.stats().appended
    scene.end()
    assert scene.copy.index.stats().appended == before, "its text was in the index already"


def test_the_row_comes_first(scene: Scene) -> None:
    before = scene.copy.index.stats().appended
    scene.feeder.catch_up()
    assert scene.closing.wait() == scene.output_id
    assert scene.copy.index.stats().appended == before
    scene.reply()
    scene.end()


def test_the_deletion_comes_first(scene: Scene) -> None:
    scene.cache.namespace(PATH).delete(output_ids=[scene.output_id])
    scene.feeder.catch_up()
    assert scene.closing.wait() == scene.output_id
    scene.reply()
    assert scene.copy.outputs() == {1}
    assert draft_of(scene.copy, [1, 2, 3, 100, 101, 102]) == []
    scene.end()


def test_the_deletion_comes_after_the_reply_and_its_row_never(scene: Scene) -> None:
    scene.reply()
    scene.cache.namespace(PATH).delete(output_ids=[scene.output_id])
    scene.end()
    assert scene.copy.outputs() == {1}


def test_the_segment_comes_first(scene: Scene) -> None:
    scene.cache.seal(PATH)
    scene.feeder.send_sealed()
    assert scene.output_id in scene.copy.outputs()
    scene.reply()
    assert scene.closing.wait() == scene.output_id
    assert scene.copy.stats().hot_tokens == 0
    scene.end()


def test_new_contents_cover_it(scene: Scene) -> None:
    scene.feeder.load()
    assert scene.closing.wait() == scene.output_id
    scene.reply()
    scene.end()


def test_new_contents_cover_it_in_a_segment(scene: Scene) -> None:
    scene.cache.seal(PATH)
    scene.feeder.load()
    scene.reply()
    scene.end()


def test_contents_from_after_its_deletion_are_loaded_when_the_reply_comes(scene: Scene) -> None:
    scene.cache.namespace(PATH).delete(output_ids=[scene.output_id])
    contents = scene.cache.feed.contents(PATH)
    scene.copy.begin_contents(contents, [])
    scene.reply()
    scene.copy.add_hot(list(scene.cache.feed.hot_outputs(contents)))
    scene.copy.finish_contents(contents)
    assert scene.copy.outputs() == {1}
    scene.end()


def test_the_service_kept_nothing(scene: Scene) -> None:
    scene.cache.namespace(PATH).delete(output_ids=[scene.output_id])
    scene.copy.acknowledge(scene.closing.output.uuid, None)
    assert scene.closing.wait() is None
    assert scene.closing.session.closed
    assert scene.copy.stats().refused_outputs == 1
    scene.feeder.catch_up()
    require_equal(scene.copy, rows(scene.cache))


def test_a_failure_leaves_the_session_open_and_a_retry_closes_it(scene: Scene) -> None:
    """The row of the first attempt arrives in between."""
    uuid = scene.closing.output.uuid
    scene.copy.fail(uuid, ServiceUnavailableError("gone"))
    assert isinstance(scene.closing.wait(), ServiceUnavailableError)
    assert not scene.closing.session.closed
    assert draft_of(scene.copy, [1, 2, 3, 100, 101, 102])[:2] == [103, 104], "its text is live again"
    scene.feeder.catch_up()
    scene.closing.close()
    assert scene.closing.output.uuid == uuid
    scene.reply()
    scene.end()


def test_a_late_reply_does_not_bring_back_what_was_deleted(scene: Scene) -> None:
    """Of a write that failed here and was made again, after its first output was deleted."""
    uuid = scene.closing.output.uuid
    scene.copy.fail(uuid, ServiceUnavailableError("gone"))
    scene.closing.wait()
    scene.cache.namespace(PATH).delete(output_ids=[scene.output_id])
    scene.feeder.catch_up()
    scene.closing.close()
    scene.reply()
    assert scene.closing.wait() == scene.output_id
    assert scene.copy.outputs() == {1}
    scene.end()


def test_a_repeated_deletion_does_not_end_a_later_write(scene: Scene) -> None:
    uuid, first = scene.closing.output.uuid, scene.output_id
    scene.copy.fail(uuid, ServiceUnavailableError("gone"))
    scene.closing.wait()
    scene.cache.namespace(PATH).delete(output_ids=[first])
    scene.feeder.catch_up()
    scene.closing.close()
    [scene.output_id] = scene.cache.namespace(PATH).add_outputs([scene.closing.output])
    assert scene.output_id > first
    for outputs, deletions in scene.feeder.batches:
        scene.copy.apply_changes(outputs, deletions)
    assert scene.copy.pending_writes == 1
    scene.reply()
    scene.end()


def test_a_write_that_is_decided_after_a_clear_holds_nothing(scene: Scene) -> None:
    scene.copy.clear()
    scene.reply()
    assert scene.closing.wait() == scene.output_id
    assert scene.copy.outputs() == set()
    assert scene.copy.index.stats().tokens == 0
    scene.feeder.load()
    scene.end()


def test_two_sessions_write_the_same_output(scene: Scene) -> None:
    second = Closing(scene.copy, len(scene.closing.output.segment_lens))
    assert second.output.uuid == scene.closing.output.uuid
    scene.reply()
    assert second.wait() == scene.output_id
    scene.end()


def test_an_output_without_uuid_is_refused() -> None:
    copy = NamespaceCopy(PATH)
    session = open_local(copy, [1], lambda output, done, _: copy.begin_own(output, done).future)
    session.step([2, 3])
    with pytest.raises(InvalidInputError, match="session_id"):
        session.close()
    assert session.close(commit=False) is None
    assert copy.index.stats().tokens == 0


def test_the_id_is_known_when_the_future_is_done() -> None:
    """on_committed is called first, and once."""
    copy = NamespaceCopy(PATH)
    calls: list[object] = []
    output = NewOutput(PATH, array([5, 6]), (2,), array([]), uuid=b"u" * 16)
    write = copy.begin_own(output, lambda output_id: calls.append(("committed", output_id)))
    write.future.add_done_callback(lambda future: calls.append(("done", future.result())))
    copy.acknowledge(b"u" * 16, 7)
    copy.acknowledge(b"u" * 16, 8)
    copy.fail(b"u" * 16, StoreError("late"))
    assert calls == [("committed", None), ("done", [7])], "no contents: nothing is held"


@pytest.mark.parametrize("seed", range(4))
def test_replies_and_rows_race(tmp_path: Path, seed: int) -> None:
    """Threads close sessions and acknowledge; the stream applies rows, deletions and segments meanwhile."""
    print("seed", seed)
    rng = random.Random(seed)
    with SuffixCache(tmp_path / "d", background=False) as cache:
        copy = NamespaceCopy(PATH)
        namespace = cache.namespace(PATH)
        namespace.add_output([1, 2])
        feeder = Feeder(cache, copy)
        feeder.catch_up()
        numbers = itertools.count()
        replies: list[threading.Thread] = []

        def commit(
            output: NewOutput, on_committed: OnCommitted, _live_bytes: int
        ) -> Future[list[OutputId | None]]:
            write = copy.begin_own(output, on_committed)
            [output_id] = namespace.add_outputs([output])
            if output_id % 5 == 0:
                namespace.delete(output_ids=[output_id])
            replies.append(threading.Thread(target=copy.acknowledge, args=(output.uuid, output_id)))
            replies[-1].start()
            return write.future

        def write(tokens: list[int]) -> None:
            session = open_local(copy, [1, 2], commit)
            session.step(tokens)
            if tokens[0] % 3 == 0:
                session.append_context([4, 4])
                session.step(tokens)
            assert session.close(session_id=f"s{next(numbers)}") is not None

        texts = [[rng.randrange(9) for _ in range(1, 20)] for _ in range(40)]
        threads = [
            threading.Thread(target=lambda part: [write(t) for t in part], args=(texts[i::4],))
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            feeder.catch_up()
            if rng.random() < 0.3:
                cache.seal(PATH)
            if rng.random() < 0.1:
                feeder.load()
        for thread in (*threads, *replies):
            thread.join()
        feeder.catch_up()
        assert copy.pending_writes == 0
        require_equal(copy, rows(cache))
