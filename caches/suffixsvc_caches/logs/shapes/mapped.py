"""Records whose fields are a prompt and a response: texts, token ids, or messages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from suffixsvc_caches.logs.answers import answer_content, prompt_content
from suffixsvc_caches.logs.fields import Finder, Lookups
from suffixsvc_caches.logs.options import ReadOptions
from suffixsvc_caches.logs.shapes.base import LabelReader, RawCall

__all__ = ["Mapped"]

#: token ids come first: they are what the model really wrote
_RESPONSES: Final = (
    "response_token_ids",
    "output_token_ids",
    "response",
    "completion",
    "output",
    "answer",
    "generated_text",
    "text",
)
_PROMPTS: Final = (
    "prompt_token_ids",
    "input_token_ids",
    "prompt",
    "messages",
    "instruction",
    "input",
    "question",
)


class Mapped:
    """Reads the fields the user named, or those that such logs use."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._labels = LabelReader(options)
        self._response = Finder("response_field", options.response_field, _RESPONSES)
        self._prompt = Finder("prompt_field", options.prompt_field, _PROMPTS)
        self._lookups = Lookups((self._response, self._prompt))
        # columns of prompts that nobody wants are not read
        named = (self._response, self._prompt) if options.want_prompt else (self._response,)
        self.finders = (*named, *self._labels.finders)

    @property
    def unneeded(self) -> frozenset[str]:
        """Those that only prompts are made of."""
        others = (self._response, *self._labels.finders)
        return self._prompt.keys.difference(*(finder.keys for finder in others))

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """One call a record. InvalidInputError where it has no response."""
        response, prompt = self._lookups.find(record)
        if response is None and not self._response.has(record):
            raise self._response.missing(record)
        yield RawCall(
            self._labels.read(record),
            partial(answer_content, response, self._options),
            partial(prompt_content, prompt, self._options),
        )
