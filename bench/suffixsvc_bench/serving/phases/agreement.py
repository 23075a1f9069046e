"""Comparison of answers with the driver's own: the same text, or a near-tie that rounded differently.

A server reports text, not tokens. At the first difference its next token must be one that the rest of its
text begins with (or an end token, if nothing follows). The difference is a near-tie if the logit of such a
token is close to the largest one, see :data:`suffixsvc_driver.decode.exactness.MAX_GAP`. Two tokenizations
can share bytes beyond the token that differs, so the few tokens before the first difference are checked too.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from suffixsvc_bench.decode.workload.jobs import Job
from suffixsvc_bench.serving.servers.client import Reply
from suffixsvc_bench.serving.servers.direct import DirectDriver
from suffixsvc_driver.decode.exactness import MAX_GAP

_REPLACEMENT: Final = "\ufffd"
#: tokens before the first difference that are checked
_BACK: Final = 3


class Verdict(enum.StrEnum):
    """Outcome of a comparison."""

    SAME = "same"
    NEAR_TIE = "near tie"
    DIFFERENT = "different"


@dataclass(slots=True)
class Agreement:
    """Answers of one subject by outcome: the same text, flipped by a near-tie, different.

    Attributes:
        different: keys of the jobs whose answers differ beyond a near-tie.
    """

    same: int = 0
    flips: int = 0
    different: list[str] = field(default_factory=list)


def agreement(
    driver: DirectDriver, jobs: Sequence[Job], references: Sequence[Reply], replies: Sequence[Reply]
) -> Agreement:
    """Compare the replies of one subject with the driver's, job by job."""
    found = Agreement()
    for job, reference, reply in zip(jobs, references, replies, strict=True):
        verdict = compare(driver, job, reference.token_ids, reply)
        if verdict is Verdict.SAME:
            found.same += 1
        elif verdict is Verdict.NEAR_TIE:
            found.flips += 1
        else:
            found.different.append(job.key)
    return found


def compare(driver: DirectDriver, job: Job, reference: Sequence[int], reply: Reply) -> Verdict:
    """Compare a reply with the driver's tokens for the same job."""
    expected, found = driver.text(reference), reply.text
    if expected == found:
        return Verdict.SAME
    # an answer that ends at the token limit may end within a character
    written = found.rstrip(_REPLACEMENT).encode()
    texts = [driver.bytes_of((token,)) for token in reference]
    common = _common_tokens(texts, written)
    if _cut(texts, written, reply.tokens >= job.max_tokens):
        return Verdict.SAME
    for at in range(common, max(-1, common - _BACK - 1), -1):
        rest = written[sum(map(len, texts[:at])) :]
        own = reference[at] if at < len(reference) else None
        if _near_tie(driver, [*job.prompt_ids, *reference[:at]], rest, own):
            return Verdict.NEAR_TIE
    return Verdict.DIFFERENT


def _common_tokens(texts: Sequence[bytes], written: bytes) -> int:
    """Number of tokens whose text ``written`` begins with."""
    length = 0
    for number, text in enumerate(texts):
        if not written.startswith(text, length):
            return number
        length += len(text)
    return len(texts)


def _cut(texts: Sequence[bytes], written: bytes, limited: bool) -> bool:
    """Whether one text is a beginning of the other, and the token limit ended it."""
    expected = b"".join(texts)
    return limited and (expected.startswith(written) or written.startswith(expected))


def _near_tie(driver: DirectDriver, token_ids: Sequence[int], rest: bytes, own: int | None) -> bool:
    """Whether a token with which ``rest`` can begin is nearly as likely as the most likely one.

    Args:
        own: the driver's token, which is not the one that was written.
    """
    logits = driver.logits(token_ids)
    if rest:
        candidates = [i for i, text in enumerate(driver.texts) if text and rest.startswith(text)]
    else:
        candidates = list(driver.end_ids)
    candidates = [token for token in candidates if token != own]
    return bool(candidates) and float(logits.max()) - float(logits[candidates].max()) <= MAX_GAP
