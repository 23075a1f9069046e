"""Parser of records with a prompt field and a response field: texts, token ids, or messages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.calls.answers import answer_content, prompt_content
from suffixsvc_caches.logs.calls.fields import FieldFinder, FieldLookups
from suffixsvc_caches.logs.parsers.base import LabelReader, RawCall

__all__ = ["FieldParser"]

#: token ids first: they are exactly what the model generated
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


class FieldParser:
    """Parses the fields that the user named, or common ones."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._labels = LabelReader(options)
        self._response = FieldFinder("response_field", options.response_field, _RESPONSES)
        self._prompt = FieldFinder("prompt_field", options.prompt_field, _PROMPTS)
        self._lookups = FieldLookups((self._response, self._prompt))
        # without prompts, a missing prompt field is not an error and its column is not read
        named = (self._response, self._prompt) if options.want_prompt else (self._response,)
        self.finders = (*named, *self._labels.finders)

    @property
    def unneeded(self) -> frozenset[str]:
        """Top-level fields that are only needed for prompts."""
        others = (self._response, *self._labels.finders)
        return self._prompt.keys.difference(*(finder.keys for finder in others))

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """Yield the call of a record. InvalidInputError: it has no response field."""
        response, prompt = self._lookups.find(record)
        if response is None and not self._response.has(record):
            raise self._response.missing(record)
        yield RawCall(
            self._labels.read(record),
            partial(answer_content, response, self._options),
            partial(prompt_content, prompt, self._options),
        )
