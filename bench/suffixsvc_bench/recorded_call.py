"""A call of a model as one line of JSON: the format that `suffixsvc replay` and `bench replay` read.

    {"dataset", "session_id", "agent", "turn", "prompt", "response",
     "prompt_token_ids", "response_token_ids", "tokenizer", "model", "meta"}

The calls of a session follow each other in ``turn``. ``tokenizer`` is the fingerprint of the vocabulary
that the ids belong to. ``response`` is the text alone; its ids end with the end token, where one was written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suffixsvc_driver.targets.llama_model import LlamaModel

__all__ = ["RecordedCall", "text_of"]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a model. The module's description says what the fields mean."""

    session: str
    agent: str
    turn: int
    prompt: str
    response: str
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    finish: str

    def line(self, *, dataset: str, model: str, tokenizer: str, meta: Mapping[str, Any]) -> str:
        """The line, its line feed included. ``meta`` gets ``finish`` besides what it holds."""
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


def text_of(model: LlamaModel, written: Sequence[int], eog_ids: Collection[int]) -> str:
    """The text of what was written, without the token that ended it."""
    return model.detokenize(written[:-1] if written and written[-1] in eog_ids else written)
