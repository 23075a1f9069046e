"""Chat with a model: turns to prompts, by its chat template, and readers of the answers.

    prompt = chat.prompt(turn)     # blocks for milliseconds: in a thread
    reader = chat.reader(turn, prompt.token_ids)     # one for each answer

| tools              | response_format | grammar                     |
|--------------------|-----------------|-----------------------------|
| none               | any             | that of the format          |
| auto               | text            | none                        |
| auto               | JSON            | calls, or that of the format|
| required, named    | any             | calls                       |
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import structlog

from suffixsvc.errors import GrammarError, InvalidInputError, LimitExceededError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_driver.sampling.structured import JsonSchema, Lark, Structured
from suffixsvc_openai.chat.reader import AnswerReader
from suffixsvc_openai.chat.reasoning import CLOSE, OPEN, ReasoningSplit
from suffixsvc_openai.chat.response_format import unusable
from suffixsvc_openai.chat.tool_choice import ToolMode
from suffixsvc_openai.chat.turn import ChatTurn, parameters_of
from suffixsvc_openai.engine.engine import Engine
from suffixsvc_openai.engine.plans import Prompt
from suffixsvc_openai.prompts.chat_template import ChatTemplate
from suffixsvc_openai.protocol.errors import ApiError
from suffixsvc_openai.tools.formats import ToolFormat, format_of
from suffixsvc_openai.tools.grammar import tool_grammar
from suffixsvc_openai.tools.parser import ToolCallParser

_log = structlog.get_logger(__name__)

#: tokens at the end of a prompt that spell the start of reasoning, and white space
_TAG_TOKENS: Final = 16
#: seconds after which no further tool is tried for the reason of an error
_SEARCH_SECONDS: Final = 1.0


class ChatModel(ClosedOnExit):
    """Chat template and tool format of an engine's model. Thread-safe; close it before the engine.

    A model whose template cannot be used has no chat: :meth:`prompt` raises the reason.

    Args:
        engine: tokenizes, and compiles grammars.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._template: ChatTemplate | None = None
        self._tool_format = ToolFormat.HERMES
        self._reasons = False
        self._unusable: InvalidInputError | LimitExceededError | None = None
        try:
            self._template = ChatTemplate.of(engine.model)
        except (InvalidInputError, LimitExceededError) as error:
            _log.warning("the model's chat template cannot be used", error=str(error))
            self._unusable = error
        else:
            self._tool_format = format_of(self._template.tool_text)
            self._reasons = CLOSE in self._template.text
        textless = engine.model.textless_ids
        special = ((token.text, token.id) for token in engine.model.special_tokens if token.id in textless)
        self._special_ids = {text.decode("utf-8", "replace"): token for text, token in special}

    def prompt(self, turn: ChatTurn) -> Prompt:
        """Return the prompt of a turn, with its grammar compiled. Takes milliseconds, at most seconds.

        Raises:
            ApiError: 400: a schema or a grammar cannot be used; 429: too many are compiled.
            InvalidInputError: the template refuses the messages; MessageError if ``param`` is known.
            LimitExceededError: the template exceeds its limits.
        """
        if self._template is None:
            assert self._unusable is not None  # noqa: S101  # set without a template
            raise self._unusable
        tools = turn.tools if turn.choice.mode is not ToolMode.NONE else ()
        text = self._template.render(turn.messages, tools, **turn.variables)
        grammar, param = self._grammar(turn)
        try:
            compiled = None if grammar is None else self._engine.compile(grammar)
        except GrammarError as error:
            raise self._of_one_tool(turn) or unusable(error, param) from None
        except LimitExceededError as error:  # others are compiled
            busy = HTTPStatus.TOO_MANY_REQUESTS
            raise ApiError(busy, str(error), param=param, code="rate_limit_exceeded") from None
        return Prompt(self._engine.tokenize(text), grammar, compiled)

    def reader(self, turn: ChatTurn, prompt_ids: Sequence[int]) -> AnswerReader:
        """Return the reader of one answer to a turn.

        Args:
            turn: the turn.
            prompt_ids: its prompt, which may end with the start of reasoning.
        """
        choice = turn.choice
        reasoning = None
        if self._reasons and not turn.binds:  # a grammar leaves no reasoning
            end = b"".join(self._engine.texts[token] for token in prompt_ids[-_TAG_TOKENS:])
            reasoning = ReasoningSplit(opened=end.rstrip().endswith(OPEN.encode()))
        if choice.mode is ToolMode.NONE:
            return AnswerReader(None, reasoning)
        # an answer that has a format is JSON, which is a call with a marker only
        bare = turn.format is None
        parser = ToolCallParser(self._tool_format, choice.tools, bound=choice.binds, bare=bare)
        return AnswerReader(parser, reasoning, parallel=turn.parallel, bound=choice.binds, named=choice.named)

    def close(self) -> None:
        """End the process of the template. Idempotent."""
        if self._template is not None:
            self._template.close()

    def _of_one_tool(self, turn: ChatTurn) -> ApiError | None:
        """Return the error of a tool whose schema alone cannot be used, where a grammar cannot; None if no
        such tool is found."""
        if turn.choice.mode is ToolMode.NONE:
            return None
        end = time.monotonic() + _SEARCH_SECONDS  # or each of many tools could take as long as the grammar
        for name, schema in turn.choice.tools.schemas.items():
            if time.monotonic() > end:
                return None
            try:
                self._engine.compile(JsonSchema(schema))
            except GrammarError as error:
                return unusable(error, parameters_of(turn.tools, name))
            except LimitExceededError:  # others are compiled
                return None
        return None

    def _grammar(self, turn: ChatTurn) -> tuple[Structured | None, str]:
        """Return the grammar of a turn, and the field that it is from."""
        choice = turn.choice
        if choice.mode is ToolMode.NONE or (turn.format is None and not choice.binds):
            return turn.format, "response_format"
        text = tool_grammar(
            self._tool_format,
            choice.tools,
            parallel=turn.parallel,
            special_ids=self._special_ids,
            answer=None if choice.binds else turn.format,
        )
        param = "tools" if choice.binds else "response_format"
        try:
            return Lark(text), param
        except GrammarError as error:
            raise unusable(error, param) from None
