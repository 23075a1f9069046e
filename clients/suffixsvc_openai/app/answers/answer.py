"""An answer in the making: its tokens as text, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from suffixsvc_driver.decode.detokenize_stream import DetokenizeStream, Piece
from suffixsvc_driver.decode.generation import Result
from suffixsvc_driver.drafts.events import FinishReason, TokenLogprobs
from suffixsvc_openai.app.answers.scores import TokenScores, prompt_scores
from suffixsvc_openai.engine.call import Event, PromptScored, Written
from suffixsvc_openai.engine.engine import Engine
from suffixsvc_openai.engine.plans import Plan
from suffixsvc_openai.protocol.errors import of_exception, stopping
from suffixsvc_openai.protocol.logprobs import ScoredToken

_log = structlog.get_logger(__name__)

_REASONS: Final = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
}


@dataclass(frozen=True, slots=True)
class Addition:
    """What an event adds to an answer.

    Attributes:
        text: new text.
        tokens: tokens whose text is complete now; None unless log probabilities were asked for.
    """

    text: str
    tokens: list[ScoredToken] | None = None


class Answer:
    """Text of one answer.

    Args:
        engine: detokenizes.
        plan: of the answer.

    Attributes:
        text: so far.
        tokens: of the text so far; None unless log probabilities were asked for.
        reason: ``finish_reason``; None before the end.
        result: None before the end.
        predicted, rejected: tokens of the prediction that appeared in it and that did not; 0 before the end.
    """

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._texts, self._plan = engine.texts, plan
        self._echo = plan.echo  # until it is part of the answer
        self._stream = DetokenizeStream(engine.texts.__getitem__, engine.eog_ids, plan.stops)
        scored = plan.sampling.logprobs is not None
        self._scores = TokenScores(engine.texts, engine.eog_ids, len(plan.echo)) if scored else None
        self.tokens: list[ScoredToken] | None = [] if scored else None
        self.reason: str | None = None
        self.result: Result | None = None
        self.predicted = self.rejected = 0

    @property
    def text(self) -> str:
        """The text so far."""
        return self._plan.echo + self._stream.text

    def add(self, event: Event) -> Addition:
        """Add an event; return what is new.

        Raises:
            ApiError: the answer failed, or the server is stopping.
        """
        if isinstance(event, PromptScored):
            return self._begin(event.logprobs)
        if isinstance(event, Written):
            if self._scores is not None:
                self._scores.add(event.token_ids, event.logprobs)
            return self._addition(self._stream.add(event.token_ids, event.sources))
        result = event.outcome
        if not isinstance(result, Result):
            error = of_exception(result.error)
            if error.body["error"]["type"] == "server_error":
                _log.error("an answer failed", error=repr(result.error))
            raise error
        if result.finish is FinishReason.CANCELLED:
            raise stopping()
        rest = self._addition(self._stream.finish())
        self.reason = "stop" if self._stream.stopped_at else _REASONS[result.finish]
        self.result, self.predicted = result, event.predicted
        if self._plan.caller.speculate:
            self.rejected = len(self._plan.prediction) - event.predicted
        return rest

    def _begin(self, logprobs: Sequence[TokenLogprobs]) -> Addition:
        """Begin with the prompt and its log probabilities."""
        echo, self._echo = self._echo, ""
        tokens = prompt_scores(self._texts, self._plan.prompt_ids, echo, logprobs)
        self.tokens = tokens.copy()
        return Addition(echo, tokens)

    def _addition(self, pieces: Sequence[Piece]) -> Addition:
        text = self._echo + "".join(piece.text for piece in pieces)
        self._echo = ""
        if self._scores is None or self.tokens is None:
            return Addition(text)
        tokens = self._scores.release(self._stream.released)
        self.tokens += tokens
        return Addition(text, tokens)
