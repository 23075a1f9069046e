"""Chat models that follow a script: the chat template chooses the answer, and the model writes it.

The template ends a prompt with the marker of the first line whose condition holds. Each marker is followed by
the tokens of its answer, and those by the end of the turn. Where a grammar forces the beginning of a call, as
other tokens, attention to the marker tells the model how to go on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from support.tiny_gguf import SPECIAL, TinyWriter, byte_texts

_TURN_END = 256 + SPECIAL.index("<|im_end|>")
_PIECE = 8  # characters of a token
_HEAD = 16
_MOST_LINES = _HEAD - 1
#: messages and tools as text; ``text`` is all of it
_CONVERSATION = """\
{%- set ns = namespace(text='') -%}
{%- if tools -%}
{%- set ns.text = '<|im_start|>system\\n' ~ (tools | tojson) ~ '<|im_end|>\\n' -%}
{%- endif -%}
{%- for m in messages -%}
{%- set ns.text = ns.text ~ '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') -%}
{%- for c in m.tool_calls or [] -%}
{%- set call = {'name': c.function.name, 'arguments': c.function.arguments} | tojson -%}
{%- set ns.text = ns.text ~ '<tool_call>\\n' ~ call ~ '\\n</tool_call>' -%}
{%- endfor -%}
{%- set ns.text = ns.text ~ '<|im_end|>\\n' -%}
{%- endfor -%}
{%- set text = ns.text -%}{%- set last = messages[-1] -%}{{- text -}}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""


class Line(NamedTuple):
    """An answer, and when it is given.

    Attributes:
        when: a Jinja expression of ``messages``, ``tools``, ``last`` (the last message) and ``text`` (the
            conversation).
        answer: a text; see :func:`call_of` for tool calls.
        forced: characters that a grammar forces.
        whole: characters that are followed by free text: a grammar forces some before them.
    """

    when: str
    answer: str
    forced: int = 0
    whole: int = 0


def call_of(when: str, name: str, *, of: int = 1, **argument: str) -> Line:
    """A tool call as the model writes it (Hermes).

    Args:
        of: tools that the request has; if several, their names begin differently.
        argument: the only argument of the tool.
    """
    [value] = argument.values()
    text = f"<tool_call>\n{json.dumps({'name': name, 'arguments': argument})}\n</tool_call>"
    begin = text.index(json.dumps(value)) + 1
    return Line(when, text, begin if of == 1 else text.index(name), begin)


def write_tiny_agent(path: Path, script: Sequence[Line], *, context: int = 1 << 15) -> Path:
    """Write an F32 llama; the last condition should always hold."""
    assert len(script) <= _MOST_LINES
    vocabulary = _Vocabulary(script)
    size = len(vocabulary.ids)
    # a number for each token, one that is 1 for all, and one for each line
    one, lines = size, size + 1
    width = -(-(lines + len(script)) // 32) * 32
    tiny = TinyWriter(path, "llama", 0, width, 1, context, padding=0, texts=list(vocabulary.ids))
    tiny.gguf.add_chat_template(vocabulary.template)
    tiny.gguf.add_feed_forward_length(32)
    tiny.gguf.add_head_count(1)
    tiny.gguf.add_head_count_kv(1)
    tiny.gguf.add_key_length(_HEAD)
    tiny.gguf.add_value_length(_HEAD)
    tiny.gguf.add_rope_dimension_count(_HEAD)
    tiny.gguf.add_rope_freq_base(1e9)  # the last pair of numbers does not turn
    tensors = {
        "token_embd": np.eye(size, width),
        "blk.0.attn_q": np.zeros((_HEAD, width)),
        "blk.0.attn_k": np.zeros((_HEAD, width)),
        "blk.0.attn_v": np.zeros((_HEAD, width)),
        "blk.0.attn_output": np.zeros((width, _HEAD)),
        "blk.0.ffn_gate": np.zeros((32, width)),
        "blk.0.ffn_up": np.zeros((32, width)),
        "blk.0.ffn_down": np.zeros((width, 32)),
        "output": np.zeros((size, width)),
    }
    tensors["token_embd"][:, one] = 1
    tensors["blk.0.attn_q"][-1, one] = 1  # every token asks for the marker
    for number, (marker, resumed) in enumerate(zip(vocabulary.markers, vocabulary.resumed, strict=True)):
        tensors["blk.0.attn_k"][-1, marker] = 1
        tensors["blk.0.attn_v"][number, marker] = 1
        tensors["blk.0.attn_output"][lines + number, number] = 2 / width**0.5
        tensors["output"][resumed, lines + number] = 2
    for token, following in vocabulary.follows.items():
        tensors["output"][following, token] = 8
    for name, tensor in tensors.items():
        tiny.gguf.add_tensor(f"{name}.weight", tensor.astype(np.float32))
    for norm in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        tiny.ones(f"{norm}.weight", width)
    return tiny.close()


class _Vocabulary:
    """Tokens of a script.

    Attributes:
        ids: by text, in order.
        follows: what is said after a token.
        markers: token of each line.
        resumed: token of each line after what a grammar forces.
        template: chat template.
    """

    def __init__(self, script: Sequence[Line]) -> None:
        self._stand_ins = byte_texts()
        self.ids = {text: number for number, text in enumerate([*self._stand_ins, *SPECIAL])}
        self.follows = {ord(">"): _TURN_END}  # of </tool_call>, where a grammar forces it
        self.markers: list[int] = []
        self.resumed: list[int] = []
        for line in script:
            self._add(line)
        cases = [f"{{%- elif {each.when} -%}}{{{{- '<|line{n}|>' -}}}}" for n, each in enumerate(script)]
        chosen = f"{{%- if not add_generation_prompt -%}}{''.join(cases)}{{%- endif -%}}"
        self.template = _CONVERSATION + chosen

    def _add(self, line: Line) -> None:
        self.markers.append(self.ids.setdefault(f"<|line{len(self.markers)}|>", len(self.ids)))
        # the first token has all that may be forced; so has that after what is forced
        cut = min(line.whole + _PIECE, len(line.answer))
        at = self.follows[self.markers[-1]] = self._token(line.answer[:cut])
        resumed = self._token(line.answer[line.forced : cut])
        self.resumed.append(resumed)
        rest = line.answer[cut:]
        while rest:
            length = _PIECE if len(rest) >= 2 * _PIECE else len(rest)
            while length < len(rest) and self._text(rest[:length]) in self.ids:
                length += 1  # llama.cpp wants the texts of a vocabulary to differ
            self.follows[at] = self.follows[resumed] = at = resumed = self._token(rest[:length])
            rest = rest[length:]
        self.follows[at] = self.follows[resumed] = _TURN_END

    def _text(self, piece: str) -> str:
        return "".join(self._stand_ins[byte] for byte in piece.encode())

    def _token(self, piece: str) -> int:
        return self.ids.setdefault(self._text(piece), len(self.ids))
