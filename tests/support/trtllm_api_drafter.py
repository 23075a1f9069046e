"""Double of TensorRT-LLM's APIDrafter, as an endpoint sees it.

It sends one POST per sequence and step with all tokens so far and reads the draft from a field of the reply,
named with dots. A reply that is late, not a list or not a 200 is an empty draft; a longer draft is cut, a
shorter one is padded with the end token. A request has at least one response token before its first draft.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable
from typing import Any, Final

from support.recorded_calls import Call, HitRates

__all__ = ["Drafter"]

_TIMEOUT_SECONDS: Final = 10.0
#: ignores the proxies of the environment: the endpoint is on this machine
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Drafter:
    """Emits recorded responses with drafts from an endpoint.

    Args:
        endpoint, template, response_field, max_draft_len: as in APIDrafter's configuration.
        end_id: of the tokenizer.
    """

    def __init__(
        self,
        endpoint: str,
        max_draft_len: int = 8,
        template: dict[str, Any] | None = None,
        response_field: str = "draft_tokens",
        end_id: int = 151_645,
    ) -> None:
        self.endpoint = endpoint
        self.max_draft_len = max_draft_len
        self.template = template or {}
        self.response_field = response_field
        self.end_id = end_id
        self.rates = HitRates()
        self.texts: list[tuple[int, ...]] = []
        self._count = 0

    def write(self, calls: Iterable[Call]) -> None:
        """Emit the responses of all calls, one call at a time."""
        for call in calls:
            self._count += 1
            written = list(call.response[:1])
            while len(written) < len(call.response):
                length = len(call.prompt) + len(call.response) + 1
                draft = self.draft([*call.prompt, *written], self._count, length)
                accepted = call.count_accepted(len(written), draft)
                written += call.response[len(written) : len(written) + accepted + 1]
                self.rates.count(len(draft), accepted)
            self.texts.append(tuple(written))

    def draft(self, prefix: list[int], request_id: int, max_sequence_length: int) -> list[int]:
        """Query the endpoint for a draft, cut or padded to ``max_draft_len`` tokens."""
        body = {
            "prefix": prefix,
            "request_id": request_id,
            "end_id": self.end_id,
            "max_sequence_length": max_sequence_length,
            **self.template,
        }
        request = urllib.request.Request(
            self.endpoint, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_SECONDS) as reply:
                answer: Any = json.loads(reply.read())
        except (OSError, ValueError, RecursionError):
            return []
        for key in self.response_field.split("."):
            answer = answer.get(key) if isinstance(answer, dict) else None
        if not isinstance(answer, list) or not answer:
            return []
        draft = answer[: self.max_draft_len]
        return [*draft, *[self.end_id] * (self.max_draft_len - len(draft))]
