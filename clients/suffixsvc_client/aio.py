"""Asyncio client of the service; the API of client.py with ``await``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import IO, Any, TypeVar

from suffixsvc.config import validate_namespace
from suffixsvc.errors import SuffixError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.types import (
    Draft,
    Labels,
    NamespaceRecord,
    NewOutput,
    OutputId,
    TokenIds,
    Verified,
    VerifyCost,
)
from suffixsvc_client.protocol import unary_calls
from suffixsvc_client.protocol.config import ClientConfig
from suffixsvc_client.protocol.counters import ClientStats
from suffixsvc_client.protocol.effects import (
    Background,
    Download,
    Effect,
    Exchange,
    Pause,
    Post,
    Procedure,
    Unary,
    Upload,
)
from suffixsvc_client.protocol.exporting import ExportSummary, export_request
from suffixsvc_client.protocol.procedures import Procedures
from suffixsvc_client.protocol.session_state import SessionState
from suffixsvc_client.protocol.session_values import CloseOptions, Phase, StepArgs
from suffixsvc_client.protocol.unary_calls import ServerInfo, ServiceStats
from suffixsvc_client.transport.grpc_aio import AioGrpcTransport
from suffixsvc_client.transport.interface import AsyncTransport

__all__ = ["AsyncClientNamespace", "AsyncClientSession", "AsyncSuffixClient"]

T = TypeVar("T")


class AsyncSuffixClient:
    """:class:`SuffixClient` with ``await``; belongs to the event loop it is first used on."""

    def __init__(
        self,
        target: str = "",
        config: ClientConfig | None = None,
        *,
        step_timeout_s: float | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        settings = config or ClientConfig()
        if step_timeout_s is not None:
            settings = replace(settings, step_timeout_s=step_timeout_s)
        self._transport = transport or AioGrpcTransport(target, settings.service_uid)
        self._procedures = Procedures(settings, time.monotonic)
        self._background: set[asyncio.Task[None]] = set()

    def namespace(self, path: str, tokenizer: str | None = None) -> AsyncClientNamespace:
        """The namespace at ``path``, nothing is sent; see :meth:`SuffixClient.namespace`."""
        return AsyncClientNamespace(self, validate_namespace(path), unary_calls.checked_tokenizer(tokenizer))

    async def step_many(self, steps: Sequence[tuple[AsyncClientSession, dict[str, Any]]]) -> list[Draft]:
        """A step of many sessions in one message; see :meth:`SuffixClient.step_many`."""
        recorded = [(session.state, session.record_step(**arguments)) for session, arguments in steps]
        return await self.run(self._procedures.steps(recorded))

    async def namespaces(self, prefix: str = "") -> list[NamespaceRecord]:
        """The namespaces below a prefix; see :meth:`SuffixClient.namespaces`."""
        return unary_calls.namespaces(
            await self.run(self._procedures.call(unary_calls.list_namespaces(prefix)))
        )

    async def delete_namespace(self, path: str, *, force: bool = False) -> int:
        """Delete a namespace; see :meth:`SuffixClient.delete_namespace`."""
        reply = await self.run(self._procedures.call(unary_calls.delete_namespace(path, force)))
        return int(reply.outputs)

    async def stats(self) -> ServiceStats:
        """Sums over all namespaces; see :meth:`SuffixClient.stats`."""
        return unary_calls.stats(await self.run(self._procedures.call(unary_calls.get_stats(""))))

    async def server_info(self) -> ServerInfo:
        """Version, limits and instance id; see :meth:`SuffixClient.server_info`."""
        return unary_calls.server_info(await self.run(self._procedures.call(unary_calls.get_server_info())))

    @property
    def counts(self) -> ClientStats:
        """Counters of this client: steps, drafts, empty drafts by reason."""
        return self._procedures.counters.snapshot(self._transport.late_replies)

    async def close(self) -> None:
        """Close the connection. Open sessions stay on the service until they expire. Idempotent."""
        self._procedures.closed = True
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._transport.close()

    async def __aenter__(self) -> AsyncSuffixClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------------------- internal to the package

    @property
    def procedures(self) -> Procedures:
        """The procedures of this client's calls; see :attr:`SuffixClient.procedures`."""
        return self._procedures

    async def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure in this task; its result."""
        try:
            effect = next(procedure)
            while True:
                try:
                    answer = await self._perform(effect)
                except SuffixError as error:
                    effect = procedure.throw(error)
                except BaseException as error:  # a cancelled task must leave a consistent state
                    procedure.throw(error)
                    raise
                else:
                    effect = procedure.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _perform(self, effect: Effect) -> Any:
        answer: Any = None
        match effect:
            case Exchange(requests, timeout_s):
                answer = await self._transport.exchange(requests, timeout_s)
            case Unary(method, request, timeout_s):
                answer = await self._transport.unary(method, request, timeout_s)
            case Upload(method, requests, timeout_s):
                answer = await self._transport.upload(method, requests, timeout_s)
            case Download(method, request, take, timeout_s):
                await self._transport.download(method, request, take, timeout_s)
            case Post(requests):
                await self._transport.post(requests)
            case Background(procedure):
                self._start(procedure)
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return answer

    def _start(self, procedure: Procedure[None]) -> None:
        task = asyncio.ensure_future(self.run(procedure))
        self._background.add(task)  # the event loop holds only weak references
        task.add_done_callback(self._background.discard)


class AsyncClientNamespace:
    """One namespace of a service; see :class:`suffixsvc_client.ClientNamespace`."""

    def __init__(self, client: AsyncSuffixClient, path: str, tokenizer: str | None) -> None:
        self._client = client
        self._path = path
        self._tokenizer = tokenizer

    @property
    def path(self) -> str:
        """Segments joined by "/"; see :attr:`ClientNamespace.path`."""
        return self._path

    async def open_session(
        self,
        prompt_token_ids: TokenIds,
        output_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        reads: Sequence[str] | None = None,
    ) -> AsyncClientSession:
        """Begin a generation; see :meth:`ClientNamespace.open_session`."""
        state = SessionState(self._path, self._tokenizer, prompt_token_ids, output_token_ids, labels, reads)
        await self._client.run(self._client.procedures.open(state))
        return AsyncClientSession(self._client, state)

    async def add_output(
        self,
        token_ids: TokenIds,
        prompt_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        ttl_seconds: int = 0,
    ) -> OutputId:
        """Store one finished output; see :meth:`ClientNamespace.add_output`."""
        output = unary_calls.new_output(self._path, token_ids, prompt_token_ids, labels, ttl_seconds)
        return (await self.add_outputs([output]))[0]

    async def add_outputs(self, outputs: Sequence[NewOutput]) -> list[OutputId]:
        """Store finished outputs; see :meth:`ClientNamespace.add_outputs`."""
        checked = unary_calls.checked_outputs(self._path, outputs)
        return await self._client.run(
            self._client.procedures.add_outputs(self._path, self._tokenizer, checked)
        )

    async def export_ngrams(
        self,
        wanted: Sequence[RecordFile],
        sinks: Sequence[IO[bytes]],
        *,
        context_tokens: int = 0,
        timeout_s: float = 3600.0,
    ) -> ExportSummary:
        """Write files of n-grams; see :meth:`ClientNamespace.export_ngrams`."""
        request = export_request(self._path, self._tokenizer, wanted, context_tokens)
        return await self._client.run(self._client.procedures.export(request, sinks, timeout_s))

    async def forget(self, output_id: OutputId) -> None:
        """Delete one output; see :meth:`ClientNamespace.forget`."""
        await self._client.run(self._client.procedures.call(unary_calls.forget(self._path, output_id)))

    async def stats(self) -> ServiceStats:
        """Contents and counters of this namespace; see :meth:`ClientNamespace.stats`."""
        call = unary_calls.get_stats(self._path)
        return unary_calls.stats(await self._client.run(self._client.procedures.call(call)))


class AsyncClientSession:
    """One generation; see :class:`suffixsvc_client.ClientSession`."""

    def __init__(self, client: AsyncSuffixClient, state: SessionState) -> None:
        self._client = client
        self.state = state

    async def step(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        at: int | None = None,
        verified: Verified | tuple[int, int, int] | None = None,
    ) -> Draft:
        """Append the tokens the model wrote and draft; see :meth:`ClientSession.step`."""
        args = self.record_step(new_token_ids, max_draft_tokens, verify_cost, tree, at, verified)
        return (await self._client.run(self._client.procedures.steps([(self.state, args)])))[0]

    def record_step(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        at: int | None = None,
        verified: Verified | tuple[int, int, int] | None = None,
    ) -> StepArgs:
        """Check a step and record its tokens without sending; see :meth:`ClientSession.record_step`."""
        return self.state.record_step(new_token_ids, max_draft_tokens, verify_cost, tree, at, verified)

    async def append_context(self, token_ids: TokenIds) -> None:
        """Append tokens the model did not write; see :meth:`ClientSession.append_context`."""
        self.state.record_context(token_ids)
        await self._client.run(self._client.procedures.append_context(self.state))

    async def close(
        self, commit: bool = True, *, incomplete: bool = False, wait: bool = True
    ) -> OutputId | None:
        """End the session; store or retract its output; see :meth:`ClientSession.close`."""
        options = CloseOptions(commit, incomplete, wait)
        return await self._client.run(self._client.procedures.close(self.state, options))

    @property
    def length(self) -> int:
        """Tokens so far; see :attr:`ClientSession.length`."""
        return len(self.state)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has succeeded."""
        return self.state.phase is Phase.CLOSED
