"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from suffixsvc_openai.app.answers.answer import Addition
from suffixsvc_openai.app.answers.responding import respond
from suffixsvc_openai.app.completions.choices_writer import ChoicesWriter
from suffixsvc_openai.app.http.callers import Speaker, caller_of
from suffixsvc_openai.app.http.request_log import note_response
from suffixsvc_openai.app.service import Service
from suffixsvc_openai.engine.call import Call
from suffixsvc_openai.engine.engine import Engine
from suffixsvc_openai.engine.plans import Prompt
from suffixsvc_openai.prompts.infill import infill_prompt
from suffixsvc_openai.protocol.completion_request import COMPLETION_TOKENS, CompletionRequest
from suffixsvc_openai.protocol.envelope import Envelope
from suffixsvc_openai.protocol.errors import unsupported
from suffixsvc_openai.protocol.logprobs import completion_logprobs


@dataclass(frozen=True, slots=True)
class TextChoice:
    """An element of ``choices``."""

    index: int

    def begin(self) -> list[dict[str, Any]]:
        """See the protocol."""
        return []

    def add(self, new: Addition) -> list[dict[str, Any]]:
        """See the protocol."""
        return [self._element(new, None)]

    def end(self, reason: str) -> list[dict[str, Any]]:
        """See the protocol."""
        return [self._element(Addition(""), reason)]

    def whole(self, answer: Addition, reason: str) -> dict[str, Any]:
        """See the protocol."""
        return self._element(answer, reason)

    def _element(self, new: Addition, reason: str | None) -> dict[str, Any]:
        logprobs = completion_logprobs(new.tokens)
        return {"index": self.index, "text": new.text, "logprobs": logprobs, "finish_reason": reason}


async def completions(service: Service, request: Request) -> Response:
    """Answer a request. Raises ApiError, ClientGone."""
    call, writer, stream = await _start(service, request)
    return await respond(service.engine, request, call, writer, stream=stream)


async def _start(service: Service, request: Request) -> tuple[Call, ChoicesWriter, bool]:
    """Start the answers; the request is not kept longer. Returns their call and writer, and ``stream``."""
    principal = service.admit(request)
    async with service.reading(request, CompletionRequest, principal) as (body, _):
        service.require_model(body.model)
        body.check()
        prompts, engine = body.prompts, service.engine
        if body.suffix and engine.model.infill_tokens is None:
            raise unsupported("suffix", "The model has no fill-in-the-middle tokens.")

        def tokens() -> Sequence[Prompt]:
            return [_prompt(engine, each, body) for each in prompts]

        limit = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        caller = caller_of(principal, request.headers, body, Speaker())
        call = await service.start(request, body, caller, tokens, limit=limit, param="prompt")
    envelope = Envelope("cmpl", "text_completion", service.model, service.fingerprint)
    note_response(request, envelope.id)
    choices = [TextChoice(index) for index in range(len(call.plans))]
    writer = ChoicesWriter(service.engine, call, body, envelope, choices)
    return call, writer, bool(body.stream)


def _prompt(engine: Engine, prompt: str | list[int], body: CompletionRequest) -> Prompt:
    # in the texts around an infill, special tokens are not recognised
    infill = bool(body.suffix)
    tokens = engine.tokenize(prompt, plain=infill) if isinstance(prompt, str) else tuple(prompt)
    if body.suffix:
        tokens = infill_prompt(engine.model, tokens, engine.tokenize(body.suffix, plain=True))
    if not body.echo:
        return Prompt(tokens)
    size = engine.model.vocab_size
    if isinstance(prompt, str):
        return Prompt(tokens, echo=prompt)
    data = b"".join(engine.texts[token] for token in prompt if 0 <= token < size)
    return Prompt(tokens, echo=data.decode("utf-8", "replace"))
