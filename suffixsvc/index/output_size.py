"""Size of outputs as limits count it: what their rows hold, and the bytes that they are charged for.

The size of an output depends on its row in the log alone, so that it is the same before and after a restart,
and for outputs of which only the row's head is read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from suffixsvc.config import labels_size
from suffixsvc.types import NewOutput

#: charge of an output in the log, besides its tokens and attributes: the fixed part of its row, its keys and
#: counters, the pages' overhead; identical outputs are charged in full, although they share a payload
LOG_BYTES_PER_OUTPUT: Final = 512
#: and for each token of it and of its prompt's tail
LOG_BYTES_PER_TOKEN: Final = 4
#: and for each byte of labels and session id: rows of such a size fill their pages by half at least
LOG_BYTES_PER_ATTRIBUTE_BYTE: Final = 2
#: charge of each of these tokens in the hot index, where random text takes 40 to 60
_INDEX_BYTES_PER_TOKEN: Final = 60


class OutputSize(NamedTuple):
    """Contents of an output's row, or sums over several.

    Attributes:
        outputs: number of outputs.
        tokens: tokens of them.
        tail_tokens: tokens of their prompts' tails.
        attribute_bytes: bytes of labels and session ids.
    """

    outputs: int = 0
    tokens: int = 0
    tail_tokens: int = 0
    attribute_bytes: int = 0

    def plus(self, other: OutputSize, sign: int = 1) -> OutputSize:
        """The sum, or (-1) the difference."""
        return OutputSize._make(a + sign * b for a, b in zip(self, other, strict=True))


def size_of(output: NewOutput) -> OutputSize:
    """The size of one output."""
    attributes = labels_size(output.labels or {}) + len(output.session_id.encode())
    return OutputSize(1, len(output.token_ids), len(output.prompt_tail), attributes)


def log_bytes(size: OutputSize) -> int:
    """Bytes that outputs are charged for in the log."""
    return (
        size.outputs * LOG_BYTES_PER_OUTPUT
        + (size.tokens + size.tail_tokens) * LOG_BYTES_PER_TOKEN
        + size.attribute_bytes * LOG_BYTES_PER_ATTRIBUTE_BYTE
    )


def charge_of(size: OutputSize) -> int:
    """Bytes that a principal is charged for outputs: in the log, and in the hot index wherever they are."""
    return log_bytes(size) + (size.tokens + size.tail_tokens) * _INDEX_BYTES_PER_TOKEN
