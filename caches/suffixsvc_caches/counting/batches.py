"""Batches of calls: the units that workers encode and count, divided the same way in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from suffixsvc.errors import TokenizerMismatchError
from suffixsvc.types import TokenArray
from suffixsvc_caches.counting.plan import CountPlan
from suffixsvc_caches.logs import LogCall, LogFile, ReadReport
from suffixsvc_caches.tokenizers.load import no_tokenizer
from suffixsvc_caches.tokenizers.pieces import encode_contents

#: limits of a batch; large enough that dispatching it costs little compared with encoding it
BATCH_CALLS: Final = 1024
BATCH_SIZE: Final = 1 << 18  # characters or tokens of its responses
#: characters of a prompt's end that are encoded for each of its last tokens
_CHARS_PER_TOKEN: Final = 32


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive calls of one file.

    Attributes:
        file: index of the file in the plan.
        number: index of the batch in the file.
        first_call: number of calls of the file before the batch; for messages.
        calls: calls with a response, without duplicates if the plan dedupes.
        duplicates: number of duplicates dropped.
        bytes_read: bytes of the file up to the end of the batch.
    """

    file: int
    number: int
    first_call: int
    calls: list[LogCall]
    duplicates: int
    bytes_read: int


class BatchReader:
    """Divides the files of a plan into batches.

    Args:
        plan: the build.
        is_new: whether no earlier response has the digest of the next one; None keeps duplicates.
        fingerprint: tokenizer that token ids must belong to; "" = that of the first call that names one.

    Attributes:
        fingerprint: tokenizer of the calls so far; "" = unknown.
    """

    def __init__(
        self, plan: CountPlan, is_new: Callable[[bytes], bool] | None, fingerprint: str = ""
    ) -> None:
        self._plan = plan
        self._is_new = is_new
        self.fingerprint = plan.tokenizer.fingerprint if plan.tokenizer else fingerprint

    def batches(self, index: int, file: LogFile, report: ReadReport) -> Iterator[Batch]:
        """Yield the batches of a file.

        Args:
            index: index of the file in the plan.
            file: the file.
            report: receives counts and faults.

        Raises:
            TokenizerMismatchError: ids of another tokenizer.
            InvalidInputError: texts without a tokenizer; or a fault of the log, if reading is strict.
        """
        position = 0

        def set_position(consumed: int) -> None:
            nonlocal position
            position = consumed

        calls: list[LogCall] = []
        size = duplicates = number = first = read = 0
        for call in self._plan.calls(file, report, set_position):
            self._check(call, file, read)
            read += 1
            if self._is_new and len(call.response) and not self._is_new(response_digest(call.response)):
                duplicates += 1
            elif len(call.response):
                calls.append(call)
                size += len(call.response)
            if size >= BATCH_SIZE or read - first >= BATCH_CALLS:
                yield Batch(index, number, first, calls, duplicates, position)
                number, first = number + 1, read
                calls, size, duplicates = [], 0, 0
        if read > first:
            yield Batch(index, number, first, calls, duplicates, position)

    def _check(self, call: LogCall, file: LogFile, number: int) -> None:
        if isinstance(call.response, str):
            if self._plan.tokenizer is None and call.response:
                raise no_tokenizer(file.path)
            return
        if call.tokenizer and self.fingerprint and call.tokenizer != self.fingerprint:
            raise TokenizerMismatchError(
                f"call {number + 1} of {file.path} must have ids of the same tokenizer",
                expected=self.fingerprint,
                got=call.tokenizer,
                remedy="Build a cache for each tokenizer.",
            )
        self.fingerprint = self.fingerprint or call.tokenizer


def response_digest(response: str | TokenArray) -> bytes:
    """Return a 128-bit digest of a response, 16 bytes."""
    raw = response.encode("utf-8", "surrogatepass") if isinstance(response, str) else response.tobytes()
    return xxhash.xxh3_128_digest(raw)


def encode(
    plan: CountPlan, calls: list[LogCall], prompt_tokens: int
) -> tuple[list[TokenArray], list[TokenArray]]:
    """Encode calls: (token ids of the responses, the last ``prompt_tokens`` token ids of the prompts)."""
    responses = encode_contents(plan.tokenizer, [call.response for call in calls])
    if not prompt_tokens:
        return responses, [np.empty(0, np.int32)] * len(calls)
    # Only the end of a prompt is encoded. A cut inside a token changes tokens next to it, but not the last
    # ones, which are many characters away.
    ends = [
        prompt[-_CHARS_PER_TOKEN * prompt_tokens :] if isinstance(prompt := call.prompt, str) else prompt
        for call in calls
    ]
    return responses, [tokens[-prompt_tokens:] for tokens in encode_contents(plan.tokenizer, ends)]
