"""What a request leaves behind: nothing of it is kept while it is answered."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.protocol.generation_request import GenerationRequest
from support.openai_serving import ENDLESS, NO_DRAFTS, idle, send
from support.serving import eventually

MESSAGES = [{"role": "user", "content": "ab"}]


def requests_of(user: str) -> list[GenerationRequest]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, GenerationRequest) and each.user == user]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {}),
        ("/v1/chat/completions", {"prompt": None, "messages": MESSAGES}),
        ("/v1/responses", {"prompt": None, "max_tokens": None, "input": "a"}),
    ],
)
def test_a_request_is_not_kept_while_it_is_answered(
    server: OpenAIServer, path: str, body: dict[str, Any], stream: bool
) -> None:
    user = f"{path} {stream}"
    given = {**ENDLESS, **NO_DRAFTS, "max_tokens": 1_500, **body, "stream": stream, "user": user}
    with send(server, {name: value for name, value in given.items() if value is not None}, path=path):
        eventually(lambda: server.service.engine.load.running == 1, "it is answered")
        eventually(lambda: not requests_of(user), "nothing keeps the request")
        assert server.service.engine.load.running == 1, "it was answered too early"
    idle(server)
