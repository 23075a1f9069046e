"""Predicted memory of outputs and live sessions in bytes, which admission reserves before a text is stored.

The predictions are upper bounds for nearly every text. Stored texts are measured; see ``docs/limits.md``.
"""

from __future__ import annotations

from typing import Final

from suffixsvc.index.output_size import (
    LOG_BYTES_PER_ATTRIBUTE_BYTE,
    LOG_BYTES_PER_OUTPUT,
    LOG_BYTES_PER_TOKEN,
    size_of,
)
from suffixsvc.types import NewOutput

#: log and hot index per position of an output: the measured maximum, of random text over two tokens; other
#: text without repetition takes 40 to 60 bytes
PREDICTED_BYTES_PER_POSITION: Final = 92 + LOG_BYTES_PER_TOKEN
PREDICTED_BYTES_PER_OUTPUT: Final = 64 + LOG_BYTES_PER_OUTPUT
#: live session, per token of prompt and context: the text and the session's private index; random text takes
#: about 50
LIVE_BYTES_PER_TOKEN: Final = 64
#: live session, per token of output, which is in the namespace's index as well; random text takes about 106
_LIVE_BYTES_PER_OUTPUT_TOKEN: Final = 128
#: outputs never take the last 1 / SESSIONS_SHARE of the cache's limit, so that a namespace without evictable
#: outputs can open a session in a full cache
SESSIONS_SHARE: Final = 8


def predicted_bytes(output: NewOutput) -> int:
    """Upper bound of the bytes of an output in log and index."""
    _, tokens, tail_tokens, attribute_bytes = size_of(output)
    return (
        PREDICTED_BYTES_PER_OUTPUT
        + PREDICTED_BYTES_PER_POSITION * (tokens + tail_tokens)
        + LOG_BYTES_PER_ATTRIBUTE_BYTE * attribute_bytes
    )


def predicted_session_bytes(context: int, output: int) -> int:
    """Upper bound of a live session's bytes for ``context`` context tokens and ``output`` output tokens."""
    return context * LIVE_BYTES_PER_TOKEN + output * _LIVE_BYTES_PER_OUTPUT_TOKEN
