"""Caller of a request and labels of its agent and conversation, from headers, body and prompt.

Frameworks send no name of an agent: without one it is a hash of the system prompt and the names of the tools,
which are an agent's own in every framework that was examined. They send no id of a conversation either; its
requests have the first messages in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self

from suffixsvc.config import validate_namespace
from suffixsvc.errors import InvalidNamespaceError
from suffixsvc_openai.engine.plans import DEFAULT_NAME, Caller
from suffixsvc_openai.protocol.errors import ApiError, invalid
from suffixsvc_openai.protocol.generation_request import GenerationRequest

NAMESPACE_HEADER: Final = "x-suffixsvc-namespace"
AGENT_HEADER: Final = "x-suffixsvc-agent"
#: number of times that OpenAI's clients have sent a request before
RETRY_HEADER: Final = "x-stainless-retry-count"
#: bytes of a name; the principal and the model take the rest of a path
MAX_NAME_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class Speaker:
    """What identifies an agent without a name, and its conversation.

    Attributes:
        system: its system messages.
        tools: names of its tools.
        opening: first other message of the conversation, which all its requests begin with; None without
            messages.
    """

    system: str = ""
    tools: tuple[str, ...] = ()
    opening: str | None = None

    @classmethod
    def of(cls, messages: Iterable[tuple[str, str | None]], tools: Iterable[str]) -> Self:
        """Return the speaker of messages (role, content)."""
        system: list[str] = []
        opening = None
        for role, text in messages:
            if role in ("system", "developer"):
                system.append(text or "")
            elif opening is None:
                opening = text or ""
        return cls("\n".join(system), tuple(sorted(tools)), opening)

    @property
    def agent(self) -> str:
        """Label of the agent; empty if nothing identifies it."""
        return f"agent-{_digest(self.system, *self.tools)}" if self.system or self.tools else ""

    @property
    def conversation(self) -> str:
        """Label of the conversation; empty if nothing identifies it."""
        if self.opening is None:
            return ""
        return f"conversation-{_digest(self.opening, self.system, *self.tools)}"


def _digest(*texts: str) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(len(text.encode()).to_bytes(8, "little") + text.encode())
    return digest.hexdigest()[:12]


def caller_of(
    principal: str, headers: Mapping[str, str], body: GenerationRequest, speaker: Speaker
) -> Caller:
    """Return the caller of a request.

    Raises:
        ApiError: 400 for an invalid namespace.
    """
    own, metadata = body.suffixsvc, body.metadata or {}
    name, param = _first(
        (headers.get(NAMESPACE_HEADER), "X-Suffixsvc-Namespace"),
        (own.namespace, "suffixsvc.namespace"),
        (metadata.get("namespace"), "metadata.namespace"),
    ) or (DEFAULT_NAME, "")
    agent = own.agent or metadata.get("agent") or headers.get(AGENT_HEADER) or speaker.agent
    labels = {
        "principal": principal,
        "agent": agent,
        "conversation": speaker.conversation,
        "user": body.user or body.safety_identifier or "",
        "prompt_cache_key": body.prompt_cache_key or "",
        "project": headers.get("openai-project", ""),
    }
    return Caller(
        principal,
        _checked(name, param),
        tuple(_checked(each, "suffixsvc.reads") for each in own.reads or ()),
        labels,
        store=not own.no_store,
        speculate=own.speculation,
        repeated=headers.get(RETRY_HEADER, "0").strip() not in ("", "0"),
    )


def _first(*named: tuple[str | None, str]) -> tuple[str, str] | None:
    return next(((value, param) for value, param in named if value is not None), None)


def _checked(name: str, param: str) -> str:
    try:
        validate_namespace(name)
    except InvalidNamespaceError as error:
        text = str(error).replace("namespace path", param)
        raise ApiError(HTTPStatus.BAD_REQUEST, text, param=param) from None
    if len(name.encode()) > MAX_NAME_BYTES:
        raise invalid(param, f"have at most {MAX_NAME_BYTES} bytes", got=len(name.encode()))
    return name
