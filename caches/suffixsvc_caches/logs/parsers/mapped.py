"""Parser of records with a prompt field and a response field: texts, token ids, or messages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.calls.answers import answer_content, prompt_content
from suffixsvc_caches.logs.parsers.base import RawCall, RecordParser


class FieldParser(RecordParser):
    """Parses the fields that the user named, or common ones."""

    # token ids first: they are exactly what the model generated
    responses = (
        "response_token_ids",
        "output_token_ids",
        "response",
        "completion",
        "output",
        "answer",
        "generated_text",
        "text",
    )
    prompts = (
        "prompt_token_ids",
        "input_token_ids",
        "prompt",
        "messages",
        "instruction",
        "input",
        "question",
    )

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        others = (self.response, *self.label_finders)
        if not options.want_prompt:  # a missing prompt field is not an error then, and its column is not read
            self.finders = others
        self.unneeded = self.prompt.keys.difference(*(finder.keys for finder in others))

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """Yield the call of a record. InvalidInputError: it has no response field."""
        response, prompt, labels = self.find(record)
        yield RawCall(
            labels,
            partial(answer_content, response, self.options),
            partial(prompt_content, prompt, self.options),
        )
