"""Client, namespace and session as both clients have them: verbs, and what runs their procedures."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from suffixsvc.errors import SuffixError
from suffixsvc_client.protocol.config import ClientConfig
from suffixsvc_client.protocol.counters import ClientStats
from suffixsvc_client.protocol.effects import Background, Call, Effect, Exchange, Pause, Post, Procedure
from suffixsvc_client.protocol.procedures import Procedures
from suffixsvc_client.protocol.session_values import Phase
from suffixsvc_client.protocol.session_verbs import SessionVerbs
from suffixsvc_client.protocol.verbs import ClientVerbs, NamespaceVerbs
from suffixsvc_client.transport.interface import AsyncTransport, Transport

V = TypeVar("V")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
AnyTransport = TypeVar("AnyTransport", Transport, AsyncTransport)
AnyRunner = TypeVar("AnyRunner", bound="Runner[Any]")


class Runner(ABC, Generic[AnyTransport]):
    """Performs the effects of procedures over a transport, whose methods return answers or awaitables."""

    #: the client's way to wait
    sleep: Callable[[float], Any]
    #: whether transport and ``sleep`` return awaitables
    awaits: ClassVar[bool]

    def __init__(self, transport: AnyTransport) -> None:
        self.transport: AnyTransport = transport

    @abstractmethod
    def start(self, procedure: Procedure[None]) -> None:
        """Run a procedure in the background."""

    async def perform(self, procedure: Procedure[T]) -> T:
        """Run a procedure; its result."""
        try:
            effect = next(procedure)
            while True:
                try:
                    answer = self._perform(effect)
                    if self.awaits and answer is not None:
                        answer = await answer
                except SuffixError as error:
                    effect = procedure.throw(error)
                except BaseException as error:  # an interrupt or a cancellation must leave a consistent state
                    procedure.throw(error)
                    raise
                else:
                    effect = procedure.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Exchange():
                return self.transport.exchange(*effect)
            case Call():
                return self.transport.call(effect)
            case Post(requests):
                return self.transport.post(requests)
            case Pause(seconds):
                return self.sleep(seconds)
            case Background(procedure):
                return self.start(procedure)


class Handle(Generic[V, R]):
    """An object whose verbs a runner performs; both are internal to the package."""

    def __init__(self, verbs: V, runner: R) -> None:
        self.verbs = verbs
        self.runner = runner


class SessionHandle(Handle[SessionVerbs, R]):
    """One generation."""

    @property
    def length(self) -> int:
        """Number of tokens so far (prompt, context and output): the position of the next append."""
        return len(self.verbs.state)

    @property
    def closed(self) -> bool:
        """Whether ``close`` has succeeded."""
        return self.verbs.state.phase is Phase.CLOSED


class NamespaceHandle(Handle[NamespaceVerbs[S], R]):
    """One namespace of a service."""

    @property
    def path(self) -> str:
        """Components joined by "/"."""
        return self.verbs.path


class ClientHandle(Handle[ClientVerbs, AnyRunner]):
    """A client of one service."""

    def __init__(self, config: ClientConfig, runner: AnyRunner) -> None:
        super().__init__(ClientVerbs(Procedures(config, time.monotonic)), runner)

    @property
    def counts(self) -> ClientStats:
        """Counters of this client: steps, drafts, empty drafts by reason."""
        return self.verbs.procedures.counters.snapshot(self.runner.transport.late_replies)


def configured(config: ClientConfig | None, step_timeout_s: float | None) -> ClientConfig:
    """The settings of a client that is given a configuration, the shorthand for a step's timeout, or both."""
    settings = config or ClientConfig()
    return settings if step_timeout_s is None else replace(settings, step_timeout_s=step_timeout_s)
