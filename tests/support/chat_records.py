"""A chat of one question, as records and as a prompt, and OpenAI's completion of it."""

from __future__ import annotations

from typing import Any

SYSTEM = {"role": "system", "content": "Be terse."}
USER = {"role": "user", "content": "How warm is it in Ulm?"}
ANSWER = {"role": "assistant", "content": "21 degrees."}
PROMPT = (
    "<|im_start|>system\nBe terse.<|im_end|>\n"
    "<|im_start|>user\nHow warm is it in Ulm?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def completion(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    choices = [
        {"index": n, "message": message, "finish_reason": "stop"} for n, message in enumerate(messages)
    ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1751284800,
        "model": "m",
        "choices": choices,
    } | fields
