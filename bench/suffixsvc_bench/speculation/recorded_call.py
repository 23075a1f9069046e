"""A model call as one line of JSON: the format that `suffixsvc replay` and `bench replay` read.

    {"dataset", "session_id", "agent", "turn", "prompt", "response",
     "prompt_token_ids", "response_token_ids", "tokenizer", "model", "meta"}

The calls of a session follow each other in ``turn``. ``tokenizer`` is the fingerprint of the vocabulary of
the ids. ``response`` is the text without the end token; its ids include the end token if one was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suffixsvc_driver.targets.llama.model import LlamaModel


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a model. See the module for the meaning of the fields."""

    session: str
    agent: str
    turn: int
    prompt: str
    response: str
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    finish: str

    def line(self, *, dataset: str, model: str, tokenizer: str, meta: Mapping[str, Any]) -> str:
        """The line with its line feed. ``finish`` is added to ``meta``."""
        record = {
            "dataset": dataset,
            "session_id": self.session,
            "agent": self.agent,
            "turn": self.turn,
            "prompt": self.prompt,
            "response": self.response,
            "prompt_token_ids": list(self.prompt_ids),
            "response_token_ids": list(self.token_ids),
            "tokenizer": tokenizer,
            "model": model,
            "meta": {**meta, "finish": self.finish},
        }
        return json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"


def text_of(model: LlamaModel, written: Sequence[int]) -> str:
    """The text of a token sequence without its end token."""
    return model.detokenize(written[:-1] if written and written[-1] in model.eog_ids else written)
