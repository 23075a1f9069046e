"""Predicted memory of outputs and live sessions, in bytes: what the limits reserve before a text is there.

The predictions are upper bounds for nearly every text. What a text takes once it is there is measured; see
``docs/limits.md``.
"""

from __future__ import annotations

from typing import Final

from suffixsvc.index.namespace import LOG_BYTES_PER_OUTPUT, LOG_BYTES_PER_TOKEN
from suffixsvc.index.texts import positions_of
from suffixsvc.types import NewOutput

__all__ = [
    "PREDICTED_BYTES_PER_OUTPUT",
    "PREDICTED_BYTES_PER_POSITION",
    "SESSIONS_SHARE",
    "predicted_bytes",
    "predicted_session_bytes",
]

#: of an output, log and hot index together: the most that was seen, which was random text over two tokens;
#: other text that shares nothing takes 40 to 60 bytes a position
PREDICTED_BYTES_PER_POSITION: Final = 92 + LOG_BYTES_PER_TOKEN
PREDICTED_BYTES_PER_OUTPUT: Final = 64 + LOG_BYTES_PER_OUTPUT
#: of a live session, for each token of prompt and context: the text and the session's own index; random text
#: takes about 50
_LIVE_BYTES_PER_TOKEN: Final = 64
#: of a live session, for each token of output, which is in the namespace's index as well; random text takes
#: about 106
_LIVE_BYTES_PER_OUTPUT_TOKEN: Final = 128
#: outputs never take the last 1 / SESSIONS_SHARE of the whole cache's limit: a namespace without outputs,
#: which may evict none, could not open a session in a full cache otherwise
SESSIONS_SHARE: Final = 8


def predicted_bytes(output: NewOutput) -> int:
    """Upper bound of what an output takes."""
    return PREDICTED_BYTES_PER_OUTPUT + PREDICTED_BYTES_PER_POSITION * positions_of(output)


def predicted_session_bytes(context: int, output: int) -> int:
    """What a live session takes for tokens of prompt and context, and for tokens of output."""
    return context * _LIVE_BYTES_PER_TOKEN + output * _LIVE_BYTES_PER_OUTPUT_TOKEN
