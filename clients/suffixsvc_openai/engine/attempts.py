"""Attempts at one answer: clients send a request again after a timeout or a lost connection.

Of all attempts one output is stored: the first complete one, else the longest incomplete one.

    request            new attempts
    its repetition     joins them, also if earlier ones are still running or have ended
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from suffixsvc.types import OutputId

#: requests that a repetition is recognised of, the newest ones
MAX_REQUESTS: Final = 4096


@dataclass(slots=True, eq=False)
class Attempts:
    """Attempts at one answer. Used by one thread, apart from their creation.

    Attributes:
        complete: a complete output is stored.
        tokens: of the stored output; 0 if none is stored.
        output: id of the stored output.
    """

    complete: bool = False
    tokens: int = 0
    output: OutputId | None = None

    def better(self, tokens: int, *, complete: bool) -> bool:
        """Return whether an output is to be stored in place of the one that is."""
        return not self.complete and (complete or tokens > self.tokens)


@dataclass(slots=True)
class RecentRequests:
    """Attempts of the newest requests, by principal, namespace and prompt. Thread-safe."""

    _found: OrderedDict[bytes, Attempts] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def attempts(self, path: str, prompt_ids: Sequence[int], choice: int, *, repeated: bool) -> Attempts:
        """Return the attempts that a request belongs to.

        Args:
            path: its namespace.
            prompt_ids: the prompt.
            choice: index of the answer among those of the request.
            repeated: the client has sent the request before.
        """
        digest = hashlib.blake2b(array("i", prompt_ids).tobytes(), digest_size=16)
        digest.update(f"{choice} {path}".encode())
        key = digest.digest()
        with self._lock:
            found = self._found.pop(key, None) if repeated else None
            self._found[key] = found = found or Attempts()
            self._found.move_to_end(key)
            if len(self._found) > MAX_REQUESTS:
                self._found.popitem(last=False)
        return found
