"""An answer in the making: its tokens as text, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from suffixsvc_driver.decode.detokenize_stream import DetokenizeStream
from suffixsvc_driver.decode.generation import Result
from suffixsvc_driver.drafts.events import FinishReason
from suffixsvc_openai.engine.call import Ended, Written
from suffixsvc_openai.engine.engine import Engine
from suffixsvc_openai.protocol.errors import of_exception, stopping

_log = structlog.get_logger(__name__)

_REASONS: Final = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
}


class Answer:
    """Text of one answer.

    Args:
        engine: detokenizes.
        stops: texts that end it.

    Attributes:
        text: so far.
        reason: ``finish_reason``; None before the end.
        result: None before the end.
    """

    def __init__(self, engine: Engine, stops: Sequence[str]) -> None:
        self._stream = DetokenizeStream(engine.texts.__getitem__, engine.eog_ids, stops)
        self.reason: str | None = None
        self.result: Result | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return self._stream.text

    def add(self, event: Written | Ended) -> str:
        """Add an event; return the new text.

        Raises:
            ApiError: the answer failed, or the server is stopping.
        """
        if isinstance(event, Written):
            pieces = self._stream.add(event.token_ids, event.sources)
            return "".join(piece.text for piece in pieces)
        result = event.outcome
        if not isinstance(result, Result):
            error = of_exception(result.error)
            if error.body["error"]["type"] == "server_error":
                _log.error("an answer failed", error=repr(result.error))
            raise error
        if result.finish is FinishReason.CANCELLED:
            raise stopping()
        rest = "".join(piece.text for piece in self._stream.finish())
        self.reason = "stop" if self._stream.stopped_at else _REASONS[result.finish]
        self.result = result
        return rest
