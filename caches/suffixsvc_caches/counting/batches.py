"""Logs in batches: what one worker encodes and counts at a time, cut the same way every time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import xxhash

from suffixsvc.errors import InvalidInputError, TokenizerMismatchError
from suffixsvc.types import TokenArray
from suffixsvc_caches.counting.plan import CountPlan
from suffixsvc_caches.logs import LogCall, LogFile, LogTally
from suffixsvc_caches.tokenizers import encode_texts

__all__ = ["Batch", "BatchReader", "SeenBefore", "digest_of", "encode"]

#: of a batch, whichever comes first: large enough that handing it out costs nothing beside encoding it
_CALLS: Final = 1024
_SIZE: Final = 1 << 18  # characters or tokens of its responses
#: characters of a prompt's end in which its last tokens are looked for, for each token wanted
_CHARS_PER_TOKEN: Final = 32


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls of one file that follow each other.

    Attributes:
        file, number: which of the plan's files, and which of its batches.
        first_call: how many calls of the file come before; for messages.
        calls: with a response; duplicates are not among them where they are not wanted.
        duplicates: how many were left out.
        bytes_read: of the file, up to the end of the batch.
    """

    file: int
    number: int
    first_call: int
    calls: list[LogCall]
    duplicates: int
    bytes_read: int


class SeenBefore(Protocol):
    """Remembers digests."""

    def add(self, digest: bytes) -> bool:
        """Whether it is new."""


class BatchReader:
    """The batches of one file after the other.

    Args:
        plan: what to read.
        seen: responses that came before; None keeps duplicates.
        fingerprint: of the tokenizer that ids have to belong to; "" takes that of the first call that says.
    """

    def __init__(self, plan: CountPlan, seen: SeenBefore | None, fingerprint: str = "") -> None:
        self._plan = plan
        self._seen = seen
        self.fingerprint = plan.tokenizer.fingerprint if plan.tokenizer else fingerprint

    def batches(self, index: int, file: LogFile, tally: LogTally) -> Iterator[Batch]:
        """All batches of a file.

        Raises:
            TokenizerMismatchError: ids of another tokenizer. InvalidInputError: texts, and no tokenizer; a
            fault of the log, where those are fatal.
        """
        position = 0

        def moved(to: int) -> None:
            nonlocal position
            position = to

        calls: list[LogCall] = []
        size = duplicates = number = first = read = 0
        for call in self._plan.calls(file, tally, moved):
            self._check(call, file, read)
            read += 1
            if self._is_duplicate(call):
                duplicates += 1
            elif len(call.response):
                calls.append(call)
                size += len(call.response)
            if size >= _SIZE or read - first >= _CALLS:
                yield Batch(index, number, first, calls, duplicates, position)
                number, first = number + 1, read
                calls, size, duplicates = [], 0, 0
        if read > first:
            yield Batch(index, number, first, calls, duplicates, position)

    def _is_duplicate(self, call: LogCall) -> bool:
        if self._seen is None or not len(call.response):
            return False
        return not self._seen.add(digest_of(call.response))

    def _check(self, call: LogCall, file: LogFile, number: int) -> None:
        if isinstance(call.response, str):
            if self._plan.tokenizer is None and call.response:
                raise InvalidInputError(
                    f"{file.path} holds texts, not token ids",
                    expected="a tokenizer, or a log of token ids",
                    remedy="Give a GGUF or a tokenizer.json with --tokenizer.",
                )
            return
        if call.tokenizer and self.fingerprint and call.tokenizer != self.fingerprint:
            raise TokenizerMismatchError(
                f"call {number + 1} of {file.path} has ids of another tokenizer",
                expected=self.fingerprint,
                got=call.tokenizer,
                remedy="Build a cache for each tokenizer.",
            )
        self.fingerprint = self.fingerprint or call.tokenizer


def digest_of(response: str | TokenArray) -> bytes:
    """16 bytes that equal responses have in common, and others do not."""
    raw = response.encode("utf-8", "surrogatepass") if isinstance(response, str) else response.tobytes()
    return xxhash.xxh3_128_digest(raw)


def encode(
    plan: CountPlan, calls: list[LogCall], prompt_tokens: int
) -> tuple[list[TokenArray], list[TokenArray]]:
    """Token ids of the responses, and of the last ``prompt_tokens`` tokens of the prompts."""
    responses = _encode_all(plan, [call.response for call in calls])
    if not prompt_tokens:
        return responses, [np.empty(0, np.int32)] * len(calls)
    # Only the end of a prompt counts. Where the cut falls within a token the first ones found are not the
    # prompt's own; with so many characters a token they are not among the last.
    ends = [
        prompt[-_CHARS_PER_TOKEN * prompt_tokens :] if isinstance(prompt := call.prompt, str) else prompt
        for call in calls
    ]
    return responses, [tokens[-prompt_tokens:] for tokens in _encode_all(plan, ends)]


def _encode_all(plan: CountPlan, given: list[str | TokenArray]) -> list[TokenArray]:
    texts = [each for each in given if isinstance(each, str)]
    encoded = iter(encode_texts(plan.tokenizer, texts) if texts and plan.tokenizer else ())
    none = np.empty(0, np.int32)
    return [next(encoded, none) if isinstance(each, str) else each for each in given]
