"""Parts of the server that every route uses: admission, the model's name, prompts as plans, calls."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request

from suffixsvc.access.caller import Caller as Sender
from suffixsvc.errors import InvalidInputError, LimitExceededError
from suffixsvc_driver.decode.requests import QueueFullError
from suffixsvc_openai.app.http.authentication import Authentication
from suffixsvc_openai.app.http.bodies import B, read_body
from suffixsvc_openai.app.http.body_memory import BodyMemory, HeldBody
from suffixsvc_openai.app.http.live_calls import LiveCalls
from suffixsvc_openai.app.http.request_log import note_call, note_principal
from suffixsvc_openai.app.http.streaming import while_connected
from suffixsvc_openai.app.metrics import Metrics
from suffixsvc_openai.app.preparing import Preparing
from suffixsvc_openai.chat.chat_model import ChatModel
from suffixsvc_openai.engine.call import Call
from suffixsvc_openai.engine.engine import Engine
from suffixsvc_openai.engine.plans import Caller, Plan, Prompt
from suffixsvc_openai.live.feed import Feed
from suffixsvc_openai.live.viewer import ViewerLimit
from suffixsvc_openai.protocol.errors import ApiError, invalid, queue_full, stopping
from suffixsvc_openai.protocol.generation_request import BANNED, GenerationRequest, unknown_fields
from suffixsvc_openai.responses.stored import ResponseStore

_SEEDS: Final = 1 << 63

#: makes the prompts of a request; runs in a thread
Prompts = Callable[[], Sequence[Prompt]]


@dataclass(slots=True)
class Service:
    """A server's parts.

    Attributes:
        engine: the model.
        chat: its chat.
        authentication: says who sends a request.
        metrics: metrics.
        model: id of the model.
        feed: what the live page shows.
        responses: the stored ones.
        draining: new calls are refused.
        viewers: counts the open live pages.
        bodies: memory of the bodies of requests that are not admitted yet.
        preparing: counts these requests.
        live: the calls in progress.
    """

    engine: Engine
    chat: ChatModel
    authentication: Authentication
    metrics: Metrics
    model: str
    feed: Feed
    responses: ResponseStore = field(default_factory=ResponseStore)
    draining: bool = False
    viewers: ViewerLimit = field(default_factory=ViewerLimit)
    created: int = field(default_factory=lambda: int(time.time()))
    bodies: BodyMemory = field(init=False)
    preparing: Preparing = field(init=False)
    live: LiveCalls = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = BodyMemory(principals=self.authentication.principals)
        self.live = LiveCalls(self.authentication, self.engine.cancel)
        # as many as could be admitted at once
        self.preparing = Preparing(self.engine.lanes + self.engine.queue_size)

    def sender(self, request: Request) -> Sender:
        """Return who sends a request. Raises ApiError: 401 or 403."""
        sender = self.authentication.caller(request)
        note_principal(request, sender.principal)
        return sender

    def principal(self, request: Request) -> str:
        """Return the principal of a request. Raises ApiError: 401 or 403."""
        return self.sender(request).principal

    def admit(self, request: Request) -> str:
        """Return the principal of a request for an answer. Raises ApiError: 401, 403 or 503."""
        principal = self.principal(request)
        if self.draining:
            raise stopping()
        return principal

    @asynccontextmanager
    async def reading(
        self, request: Request, kind: type[B], principal: str
    ) -> AsyncIterator[tuple[B, HeldBody]]:
        """Read a body and count its unknown fields, for a block that ends when the request is admitted.

        The body, whose memory is the second value, and the request count against their limits until then.

        Raises:
            ApiError: 400, 408, 413, 429 or 503.
        """
        with self.bodies.body(principal) as held:
            body = await read_body(request, kind, held)
            self.metrics.ignored(len(unknown_fields(body)))
            try:
                with self.preparing.one(principal):
                    yield body, held
            except QueueFullError as error:
                raise queue_full(error) from None

    def require_model(self, name: str) -> None:
        """Raise ApiError, 404, unless the model is the one that is served."""
        if name != self.model:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"the model {name[:200]!r} does not exist",
                param="model",
                code="model_not_found",
                remedy=f"This server has {self.model!r}.",
            )

    def describe_model(self) -> dict[str, Any]:
        """Return the model as OpenAI's object."""
        return {
            "id": self.model,
            "object": "model",
            "created": self.created,
            "owned_by": "suffixsvc",
            "max_model_len": self.engine.context_size,
        }

    @property
    def fingerprint(self) -> str:
        """``system_fingerprint``: changes with the model."""
        return f"fp_{self.engine.model.digest}"

    async def start(
        self,
        request: Request,
        body: GenerationRequest,
        caller: Caller,
        prompts: Prompts,
        *,
        limit: int | None,
        param: str,
        compiles: bool = False,
    ) -> Call:
        """Start ``n`` answers to each prompt.

        Args:
            request: ends the wait when its client disconnects.
            body: sampling, n and stops.
            caller: the sender.
            prompts: makes the tokens of the prompts.
            limit: largest number of tokens of an answer; None for as many as the context holds.
            param: field of the prompts, for errors.
            compiles: making the prompts compiles a grammar.

        Raises:
            ApiError: 400.
            QueueFullError: the queue is full.
            ClientGone: the client has disconnected.
        """
        plans = partial(self._plans, body, caller, prompts, limit, param)
        call = await while_connected(request, self._start(plans, caller.principal, compiles))
        self.live.add(call, request.state.caller)
        note_call(request, call)
        return call

    async def _start(self, plans: Callable[[], list[Plan]], principal: str, compiles: bool) -> Call:
        arrived = time.monotonic()
        made = await self.engine.run(plans, principal, compiles=compiles)
        return await self.engine.start(made, arrived)

    def _plans(
        self, body: GenerationRequest, caller: Caller, prompts: Prompts, limit: int | None, param: str
    ) -> list[Plan]:
        seed = random.randrange(_SEEDS) if body.seed is None else body.seed
        self._check_biases(body)
        plans = []
        checked = self._checked(prompts, param)
        self._check_count(body.n or 1, len(checked))
        for prompt in checked:
            for choice in range(body.n or 1):
                sampling = replace(body.sampling(seed + choice), grammar=prompt.grammar)
                stops = tuple(body.stop or ())
                plans.append(
                    Plan(
                        prompt.token_ids,
                        limit,
                        sampling,
                        stops,
                        caller,
                        prompt.compiled,
                        prompt.echo,
                        prompt.prediction,
                    )
                )
        return plans

    def _checked(self, prompts: Prompts, param: str) -> Sequence[Prompt]:
        try:
            found = prompts()
        except (InvalidInputError, LimitExceededError) as error:  # of the chat template
            raise ApiError(HTTPStatus.BAD_REQUEST, str(error), param=getattr(error, "param", param)) from None
        room, size = self.engine.context_size, self.engine.model.vocab_size
        for tokens in (prompt.token_ids for prompt in found):
            if not tokens:
                raise invalid(param, "have at least one token")
            if min(tokens) < 0 or max(tokens) >= size:
                raise invalid(param, f"have tokens of the vocabulary, 0 .. {size - 1}")
            if len(tokens) >= room:
                raise ApiError(
                    HTTPStatus.BAD_REQUEST,
                    f"{param} must be shorter than the context of {room} tokens",
                    param=param,
                    code="context_length_exceeded",
                    got=f"{len(tokens)} tokens or more",
                    remedy="Send a shorter one, or start the server with a larger --context.",
                )
        return found

    def _check_count(self, n: int, prompts: int) -> None:
        most = self.engine.most_answers
        if n * prompts > most:
            raise invalid(
                "n",
                f"ask for at most {most} answers, of all prompts together: so many fit in lanes and queue",
                got=n if prompts == 1 else f"{n} answers to each of {prompts} prompts",
                remedy="Send several requests, or start the server with a larger --queue.",
            )

    def _check_biases(self, body: GenerationRequest) -> None:
        size = self.engine.model.vocab_size
        for token in body.logit_bias or ():
            if not 0 <= token < size:
                raise invalid("logit_bias", f"have token ids 0 .. {size - 1}", got=token)
        if sum(bias == BANNED for bias in (body.logit_bias or {}).values()) == size:
            raise invalid("logit_bias", f"leave a token that is not banned by {BANNED}")
