"""Asyncio client of the service; the API of client.py with ``await``."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from suffixsvc_client.handles import ClientHandle, Handle, NamespaceHandle, Runner, SessionHandle, configured
from suffixsvc_client.protocol.config import ClientConfig
from suffixsvc_client.protocol.effects import Procedure
from suffixsvc_client.protocol.session_verbs import SessionVerbs
from suffixsvc_client.protocol.verbs import ClientVerbs, NamespaceVerbs
from suffixsvc_client.transport.grpc_aio import AioGrpcTransport
from suffixsvc_client.transport.interface import AsyncTransport

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


class AsyncRunner(Runner[AsyncTransport]):
    """Runs procedures in the calling task, and those of the background in tasks of their own."""

    sleep = staticmethod(asyncio.sleep)
    awaits = True

    def __init__(self, transport: AsyncTransport) -> None:
        super().__init__(transport)
        self._background: set[asyncio.Task[None]] = set()

    def start(self, procedure: Procedure[None]) -> None:
        """Run a procedure in the background."""
        task = asyncio.ensure_future(self.perform(procedure))
        self._background.add(task)  # the event loop holds only weak references
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Cancel the procedures in the background and close the transport."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.transport.close()


def _awaited(
    verb: Callable[Concatenate[V, P], Procedure[T]],
) -> Callable[Concatenate[Handle[V, AsyncRunner], P], Coroutine[Any, Any, T]]:
    """The coroutine method that runs a verb and returns its result."""

    @functools.wraps(verb)
    async def method(self: Handle[V, AsyncRunner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.runner.perform(verb(self.verbs, *args, **kwargs))

    return method


class AsyncClientSession(SessionHandle[AsyncRunner]):
    """One generation; see :class:`suffixsvc_client.ClientSession`."""

    step = _awaited(SessionVerbs.step)
    append_context = _awaited(SessionVerbs.append_context)
    close = _awaited(SessionVerbs.close)


class AsyncClientNamespace(NamespaceHandle[AsyncClientSession, AsyncRunner]):
    """One namespace of a service; see :class:`suffixsvc_client.ClientNamespace`."""

    open_session = _awaited(NamespaceVerbs[AsyncClientSession].open_session)
    add_output = _awaited(NamespaceVerbs[AsyncClientSession].add_output)
    add_outputs = _awaited(NamespaceVerbs[AsyncClientSession].add_outputs)
    export_ngrams = _awaited(NamespaceVerbs[AsyncClientSession].export_ngrams)
    delete = _awaited(NamespaceVerbs[AsyncClientSession].delete)
    stats = _awaited(NamespaceVerbs[AsyncClientSession].stats)


class AsyncSuffixClient(ClientHandle[AsyncRunner]):
    """:class:`SuffixClient` with ``await``; belongs to the event loop it is first used on."""

    def __init__(
        self,
        target: str = "",
        config: ClientConfig | None = None,
        *,
        step_timeout_s: float | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        settings = configured(config, step_timeout_s)
        chosen = transport or AioGrpcTransport(target, settings)
        super().__init__(settings, AsyncRunner(chosen))

    step_many = _awaited(ClientVerbs.step_many)
    post_many = _awaited(ClientVerbs.post_many)
    flush_many = _awaited(ClientVerbs.flush_many)
    namespaces = _awaited(ClientVerbs.namespaces)
    namespace_summaries = _awaited(ClientVerbs.namespace_summaries)
    delete = _awaited(ClientVerbs.delete)
    delete_namespace = _awaited(ClientVerbs.delete_namespace)
    stats = _awaited(ClientVerbs.stats)
    server_info = _awaited(ClientVerbs.server_info)
    backup = _awaited(ClientVerbs.backup)

    def namespace(self, path: str, tokenizer: str | None = None) -> AsyncClientNamespace:
        """The namespace at ``path``, nothing is sent; see :meth:`SuffixClient.namespace`."""
        new_session = functools.partial(AsyncClientSession, runner=self.runner)
        verbs = NamespaceVerbs(self.verbs.procedures, path, tokenizer, new_session)
        return AsyncClientNamespace(verbs, self.runner)

    async def close(self) -> None:
        """Close the connection. Open sessions stay on the service until they expire. Idempotent."""
        self.verbs.procedures.closed = True
        await self.runner.close()

    async def __aenter__(self) -> AsyncSuffixClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
