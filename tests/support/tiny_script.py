"""Tiny models that answer with given texts, and chat templates for them.

The token before an answer decides which one it is, so a template that ends prompts with different characters
has different answers, as an agent needs them: a call after a question, a text after a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.tiny_gguf import SPECIAL, TinyWriter, byte_texts, fill_chain

_TURN_END = 256 + SPECIAL.index("<|im_end|>")
#: the size of the vocabulary is the model's width
_WIDTH = 288
MAX_PARTS = 24

#: ends prompts with "Q", and with "R" after the result of a tool; it has a place for tools
AGENT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content %}{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
    "{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'R' if messages[-1].role == 'tool' else 'Q' }}{% endif %}"
)


def write_tiny_script(
    path: Path,
    answers: Mapping[str, Sequence[str]],
    *,
    template: str = "",
    control: Sequence[str] = (),
    context: int = 1 << 13,
) -> Path:
    """Write a model whose text after a character is an answer, each part of which is a token.

    Args:
        answers: parts by the character before them. At most 24 different ones, of two bytes or more. Parts
            that begin with "<|" are control tokens.
        control: parts that are control tokens too.
        template: chat template; by default the file has none, and prompts end with a line feed.
    """
    parts = list(dict.fromkeys(part for answer in answers.values() for part in answer))
    assert len(parts) <= MAX_PARTS
    assert all(len(part.encode()) > 1 for part in parts), "bytes are tokens already"
    texts = byte_texts()
    special = [part for part in parts if part[:2] == "<|" or part in control]
    printable = [
        part if part in special else "".join(texts[byte] for byte in part.encode()) for part in parts
    ]
    padding = _WIDTH - len(texts) - len(SPECIAL) - len(parts)
    vocabulary = [*texts, *SPECIAL, *printable]
    tiny = TinyWriter(path, "llama", 0, _WIDTH, 1, context, padding, vocabulary, control=special)
    if template:
        tiny.gguf.add_chat_template(template)
    ids = {part: 256 + len(SPECIAL) + at for at, part in enumerate(parts)}
    follows: dict[int, int] = {}
    for start, answer in answers.items():
        path_ids = [ord(start), *(ids[part] for part in answer), _TURN_END]
        for before, after in itertools.pairwise(path_ids):
            assert follows.setdefault(before, after) == after, "each part has one successor"
    return fill_chain(tiny, follows)
