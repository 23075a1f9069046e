"""Helpers of the tests of followers: a service's log, sent through the wire's conversions into a copy."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash

from suffixsvc import SuffixCache
from suffixsvc.config import Limits
from suffixsvc.core.segments import Segment
from suffixsvc.errors import UnknownNamespaceError
from suffixsvc.index import Commit, NamespaceIndex, Sealed, Session
from suffixsvc.index.texts import positions_of
from suffixsvc.log_types import Deletion, LogPosition, SealedContents
from suffixsvc.log_wire import (
    deletion_to_proto,
    output_from_proto,
    output_to_proto,
    sealed_from_proto,
    sealed_to_proto,
)
from suffixsvc.types import NewOutput, SegmentRecord, StoredOutput, TokenArray
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc_follower.contents.namespace_copy import NamespaceCopy
from suffixsvc_follower.contents.segment_source import SegmentSource

PATH = "acme/sql"
Batch = tuple[list[StoredOutput], list[Deletion]]


def no_fetch(_namespace: str, _name: str, _offset: int) -> Iterable[bytes]:
    raise AssertionError("the files are on this host")


def array(tokens: Iterable[int]) -> TokenArray:
    return np.array(list(tokens), np.int32)


def header_digest(path: Path) -> bytes:
    return xxhash.xxh3_128_digest(path.read_bytes()[:512])


def over_the_wire(stored: StoredOutput) -> StoredOutput:
    message = pb.LoggedOutput.FromString(output_to_proto(stored).SerializeToString())
    return output_from_proto(stored.output.namespace, message)


def deletion_over_the_wire(deletion: Deletion) -> Deletion:
    message = pb.LoggedDeletion.FromString(deletion_to_proto(deletion).SerializeToString())
    return Deletion(deletion.generation, message.output_id, message.uuid)


class Feeder:
    """What a stream does: sends the log of one namespace to a copy.

    Args:
        between: called between any two steps, to write to the log meanwhile.
        opens: whether a segment can be opened now.
    """

    def __init__(
        self,
        cache: SuffixCache,
        copy: NamespaceCopy,
        between: Callable[[], object] = lambda: None,
        opens: Callable[[], bool] = lambda: True,
    ) -> None:
        self.cache, self.copy, self._between, self._opens = cache, copy, between, opens
        self._source = SegmentSource(None, 0, no_fetch)
        self._digests: dict[str, bytes] = {}
        self.generation = 0
        self.position = LogPosition(0, 0, 0)
        self.batches: list[Batch] = []  #: of these contents, for repeated deliveries

    def load(self) -> None:
        """Send contents; they are broken off if the namespace is deleted meanwhile."""
        try:
            self._load()
        except UnknownNamespaceError:
            self.generation = -1

    def _load(self) -> None:
        self.batches = []
        if not self.cache.has_namespace(PATH):
            self.copy.clear()
            self.generation, self.position = 0, self.cache.feed.position()
            return
        contents = self.cache.feed.contents(PATH)
        self._between()
        sealed, digests = self._sealed_over_the_wire(contents.sealed)
        contents = replace(contents, sealed=sealed)
        self.copy.begin_contents(contents, self._open(sealed, digests))
        self._between()
        for stored in self.cache.feed.hot_outputs(contents):
            self.copy.add_hot([over_the_wire(stored)])
            self._between()
        self.copy.finish_contents(contents)
        self.generation, self.position = contents.generation, contents.position

    def catch_up(self) -> None:
        """Send changes up to the end of the log, then the manifest."""
        while True:
            if self.cache.feed.generation(PATH) != self.generation:
                self.load()
            if self.position == self.cache.feed.position():
                break
            found = self.cache.feed.changes(self.position, {self.generation})
            if found is None:
                self.load()
                continue
            self._between()
            outputs = [over_the_wire(stored) for _, stored in found.outputs]
            deletions = [deletion_over_the_wire(deletion) for deletion in found.deletions]
            self.copy.apply_changes(outputs, deletions)
            self.batches.append((outputs, deletions))
            self.position = found.position
        self.send_sealed()

    def send_sealed(self) -> None:
        if not self.generation or self.generation != self.cache.feed.generation(PATH):
            return
        sealed, digests = self._sealed_over_the_wire(self.cache.feed.sealed(PATH))
        self.copy.apply_sealed(sealed, self._open(sealed, digests))

    def open_missing(self) -> None:
        """Open segments that could not be opened before."""
        found = [(r, self._open_one(r, self._all_digests[r.name])) for r in self.copy.missing_segments()]
        self.copy.attach_opened([each for _, each in found if each is not None])

    def _open(self, sealed: SealedContents, digests: dict[str, bytes]) -> list[Sealed]:
        attached = {each.record.name for each in self.copy.sealed()}
        self._all_digests = digests
        new = [
            r for r in sealed.segments if r.name not in attached or self._digests[r.name] != digests[r.name]
        ]
        opened = [self._open_one(r, digests[r.name]) for r in new if self._opens()]
        return [each for each in opened if each is not None]

    def _open_one(self, record: SegmentRecord, digest: bytes) -> Sealed | None:
        folder = str(self.cache._parts.store.segment_folder)
        segment = self._source.open(PATH, record, digest, (), folder)
        self._digests[record.name] = digest
        return None if segment is None else Sealed(record, segment, record.outputs, record.tokens)

    def _sealed_over_the_wire(self, sealed: SealedContents) -> tuple[SealedContents, dict[str, bytes]]:
        folder = self.cache._parts.store.segment_folder

        def digest_of(name: str) -> bytes:
            assert folder is not None
            try:
                return header_digest(folder / name)
            except FileNotFoundError:  # merged meanwhile
                return bytes(16)

        message = sealed_to_proto(PATH, sealed, digest_of)
        found, digests = sealed_from_proto(pb.SealedContents.FromString(message.SerializeToString()))
        return found, dict(digests)


def rows(cache: SuffixCache) -> list[StoredOutput]:
    return list(cache._parts.store.scan(PATH)) if cache.feed.generation(PATH) else []


def ngrams_of(index: NamespaceIndex, n: int) -> dict[tuple[int, ...], int]:
    index.index.propagate_counts()
    tokens, counts = index.ngrams(n)
    return dict(zip(map(tuple, tokens.tolist()), counts.tolist(), strict=True))


def fresh_index(copy: NamespaceCopy, stored: Sequence[StoredOutput]) -> NamespaceIndex:
    """An index of the same outputs in the same segments, made from nothing."""
    fresh = NamespaceIndex(PATH)
    fresh.learner.load(copy.learner.save())
    held = [each.record for each in copy.sealed()]
    ids = {each.output_id for each in stored}
    for each in copy.sealed():
        segment = Segment(each.segment.path)
        segment.forget(set(segment.outputs()) - ids)
        segment.correct_hubs()
        fresh.attach(Sealed(each.record, segment, each.outputs, each.tokens))
    for one in stored:
        if not any(record.covers(one.output_id) for record in held):
            fresh.insert(one.output)
    return fresh


def require_equal(copy: NamespaceCopy, stored: Sequence[StoredOutput]) -> NamespaceIndex:
    """Assert that a copy without live text holds exactly these outputs and answers like a fresh index."""
    ids = {each.output_id for each in stored}
    assert copy.outputs() == ids
    fresh = fresh_index(copy, stored)
    covered = [each.record for each in copy.sealed()]
    hot = [s for s in stored if not any(record.covers(s.output_id) for record in covered)]
    assert copy.index.stats().tokens == sum(positions_of(s.output) for s in hot)
    for n in (1, 2, 3, 8):
        assert ngrams_of(copy, n) == ngrams_of(fresh, n)
    for each in copy.sealed():
        inside = [s for s in stored if each.record.covers(s.output_id)]
        assert set(each.segment.outputs()) == {s.output_id for s in inside}
        assert each.outputs == len(inside)
    copy.check()
    stats = copy.stats()
    assert stats.outputs == len(stored)
    assert stats.hot_tokens == sum(len(s.output.token_ids) for s in hot)
    assert stats.sessions == 0
    return fresh


def open_local(namespace: NamespaceIndex, prompt: Sequence[int], commit: Commit) -> Session:
    """A session of the follower's process."""
    return Session(
        namespace,
        [],
        array(prompt),
        array(()),
        labels={},
        limits=Limits(),
        commit=commit,
        on_close=lambda _logged: None,
        abandoned=deque(),
        admit=lambda _context, _output: nullcontext(),
    )


def never_commits(_output: NewOutput, _on_committed: object, _live_bytes: int) -> None:
    raise AssertionError("not committed in this test")


def draft_of(namespace: NamespaceIndex, context: Sequence[int], width: int = 8) -> list[int]:
    """What a session with this prompt drafts."""
    session = open_local(namespace, context, never_commits)  # type: ignore[arg-type]
    tokens: list[int] = session.step([], width, 0.0).token_ids.tolist()
    session.close(commit=False)
    return tokens


def random_tokens(rng: random.Random, longest: int = 30) -> list[int]:
    return [rng.randrange(9) for _ in range(rng.randrange(1, longest))]
