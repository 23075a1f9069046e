"""Chat template of a model: messages and tools to the text of a prompt.

    with ChatTemplate.of(model) as template:
        text = template.render([{"role": "user", "content": "Hello"}], tools)

The template is rendered by a process of its own, in bounded time and memory (``template_process.py``); a call
takes about a millisecond, and blocks. What the template takes is found by rendering a small conversation, as
llama.cpp does: whether it has tools, arguments as mappings or as text, a null content. Tools that a template
does not know are described in the system message (``tool_prompt.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from suffixsvc.errors import InvalidInputError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_models.gguf_header import CHAT_TEMPLATE
from suffixsvc_openai.prompts.messages import MessageError, MessageForm, clean, template_messages
from suffixsvc_openai.prompts.template_process import TemplateLimits, TemplateProcess
from suffixsvc_openai.prompts.tool_prompt import with_tools_as_text

if TYPE_CHECKING:
    from suffixsvc_driver.targets.llama.model import LlamaModel

#: template of files without one
CHATML: Final = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
#: a slip in the template of Qwen2.5-Coder: models that are asked for calls in two braces write such calls, or
#: a list of code. In a string of Jinja two braces are two.
_SLIP: Final = re.compile(r'\{(\{\\?"name\\?": <function-name>, \\?"arguments\\?": <args-json-object>\})\}')
_DEFAULT, _TOOL_USE = "default", "tool_use"
_ARGUMENT: Final = "suffixsvc probe"
_CALL: Final = {"name": "find_probe", "arguments": {"query": _ARGUMENT}}
_PROBE: Final = (
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "call00001", "function": _CALL}]},
)
_FORMS: Final = (  # in the order of trial
    (True, True),
    (True, False),
    (False, True),
    (False, False),
)


class ChatTemplate(ClosedOnExit):
    """A chat template. Thread-safe. Close it, or use it as a context manager.

    Args:
        text: a Jinja template, in the dialect of Hugging Face's transformers.
        bos, eos: texts of these tokens, as variables of the template.
        tool_use: another template for requests with tools; "" for none.
        limits: bounds of rendering one prompt.

    Attributes:
        text: as given.
        tool_text: the template of requests with tools: ``tool_use`` if there is one, else ``text``.
        knows_tools: whether the template of requests with tools has a place for them.

    Raises:
        InvalidInputError: not a Jinja template.
        LimitExceededError: compiling it, or rendering a small conversation, exceeds the limits.
    """

    def __init__(
        self,
        text: str,
        *,
        bos: str = "",
        eos: str = "",
        tool_use: str = "",
        limits: TemplateLimits = TemplateLimits(),  # noqa: B008  # frozen
    ) -> None:
        self.text = text
        self.tool_text = tool_use or text
        self._tokens = {"bos_token": bos, "eos_token": eos}
        templates = {_DEFAULT: text, **({_TOOL_USE: tool_use} if tool_use else {})}
        self._process = TemplateProcess(templates, limits)
        self._for_tools = _TOOL_USE if tool_use else _DEFAULT
        self.knows_tools = "tools" in self._process.variables[self._for_tools]
        try:
            self._calls_form = self._find_form()
        except BaseException:
            self._process.close()
            raise

    @classmethod
    def of(cls, model: LlamaModel) -> Self:
        """Return the template of a model file; ChatML if the file has none."""
        values, vocabulary = model.header.values, model.vocabulary

        def text_of(token: int) -> str:
            return model.token_bytes(token).decode("utf-8", "replace") if token >= 0 else ""

        def template(key: str) -> str:
            return _SLIP.sub(r"\1", str(values.get(key) or ""))

        return cls(
            template(CHAT_TEMPLATE) or CHATML,
            bos=text_of(vocabulary.bos_id),
            eos=text_of(vocabulary.eos_id),
            tool_use=template(f"{CHAT_TEMPLATE}.{_TOOL_USE}"),
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        /,
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the text of a prompt; tokenize it with ``parse_special``.

        Args:
            messages: of the OpenAI API.
            tools: definitions of the OpenAI API.
            add_generation_prompt: end with the start of the assistant's message.
            variables: further ones of the template (``enable_thinking``), data of JSON.

        Raises:
            MessageError: an InvalidInputError with the name of the part of a message that cannot be rendered.
            InvalidInputError: the template refuses the messages, or fails on them.
            LimitExceededError: it exceeds the limits.
        """
        name, source = (self._for_tools, self.tool_text) if tools else (_DEFAULT, self.text)
        form = replace(self._calls_form or MessageForm(), developer="developer" in source)
        turns = template_messages(messages, form)
        try:
            definitions = clean(list(tools)) if tools else None
        except RecursionError:
            raise MessageError("tools", "be nested less deep") from None
        called = any("tool_calls" in turn or turn["role"] == "tool" for turn in turns)
        if (called and self._calls_form is None) or (tools and not self.knows_tools):
            turns = with_tools_as_text(
                template_messages(messages, MessageForm(developer=form.developer)),
                [] if self.knows_tools or not definitions else definitions,
            )
        given = {
            **self._tokens,
            **variables,
            "messages": turns,
            "tools": definitions if self.knows_tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._process.render(name, given)

    def close(self) -> None:
        """End the process that renders. Idempotent."""
        self._process.close()

    def _find_form(self) -> MessageForm | None:
        """Return the first form of messages with tool calls that the template renders, or None."""
        for mapped, null in _FORMS:
            form = MessageForm(
                null_content=null, mapped_arguments=mapped, short_ids="length != 9" in self.tool_text
            )
            turns = template_messages(_PROBE, form)
            try:
                text = self._process.render(
                    self._for_tools, {**self._tokens, "messages": turns, "tools": None}
                )
            except InvalidInputError:
                continue
            escaped, printed_none = '\\"query' in text, null and "None" in text
            if str(_CALL["name"]) in text and _ARGUMENT in text and not escaped and not printed_none:
                return form
        return None
