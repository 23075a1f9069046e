"""TensorRT-LLM's part in :mod:`trtllm_endpoint`'s example and tests: its APIDrafter, as an endpoint sees it.

A POST a sequence a step with all tokens so far; a field of the answer, named with dots; an answer that is
late, no list or no 200 is an empty draft; a longer draft is cut, a shorter one padded with the end token.
Every request has the tokens of its prompt and at least one of its own before it is drafted for.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable
from typing import Any, Final

from suffixsvc_driver.adapters.examples.recorded_calls import Call, HitRates

__all__ = ["Drafter"]

_TIMEOUT_SECONDS: Final = 10.0
#: whatever the environment says of proxies, the endpoint is on this machine
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Drafter:
    """Writes recorded responses with drafts from an endpoint.

    Args:
        endpoint, template, response_field, max_draft_len: as in its configuration.
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
        """One call after the other."""
        for call in calls:
            self._count += 1
            written = list(call.response[:1])
            while len(written) < len(call.response):
                length = len(call.prompt) + len(call.response) + 1
                draft = self.draft([*call.prompt, *written], self._count, length)
                accepted = call.agrees_with(len(written), draft)
                written += call.response[len(written) : len(written) + accepted + 1]
                self.rates.count(len(draft), accepted)
            self.texts.append(tuple(written))

    def draft(self, prefix: list[int], request_id: int, max_sequence_length: int) -> list[int]:
        """What the endpoint says, cut and padded."""
        asked = {
            "prefix": prefix,
            "request_id": request_id,
            "end_id": self.end_id,
            "max_sequence_length": max_sequence_length,
            **self.template,
        }
        request = urllib.request.Request(  # noqa: S310 - the endpoint is the caller's own, http on this machine
            self.endpoint, json.dumps(asked).encode(), {"Content-Type": "application/json"}
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
