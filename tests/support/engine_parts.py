"""The parts of an embedded cache, for tests that look at its state or break a part of it."""

from __future__ import annotations

from suffixsvc import Namespace, Session, SuffixCache, core
from suffixsvc.engine.outputs.unindexing import Unindexer
from suffixsvc.engine.parts import EngineParts
from suffixsvc.index import NamespaceIndex

__all__ = ["index_of", "native_of", "parts_of", "queued_removals", "unindexer_of"]


def parts_of(cache: SuffixCache) -> EngineParts:
    """Store, catalog, sessions and so on of an open cache."""
    return cache._parts


def index_of(namespace: Namespace) -> NamespaceIndex:
    """The index of a namespace, also after its deletion."""
    return namespace._index


def native_of(session: Session) -> core.Session:
    """The core's half of a session."""
    return session._native


def unindexer_of(cache: SuffixCache) -> Unindexer:
    """What removes the texts of deleted outputs."""
    return parts_of(cache).outputs._unindexer


def queued_removals(cache: SuffixCache) -> int:
    """Texts of deleted outputs that are still to be removed."""
    return len(unindexer_of(cache)._removals)
