"""The driver called directly: plain decoding in this process, without a server.

Its tokens are the reference of all answers, and its logits decide whether a difference is a near-tie.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from suffixsvc.types import FloatArray
from suffixsvc_bench.decode.workload.jobs import Job
from suffixsvc_bench.serving.servers.client import Reply
from suffixsvc_driver.decode.loop import StepRecord, generate
from suffixsvc_driver.targets.single import LlamaTarget

DIRECT: Final = "driver"


class DirectDriver:
    """Plain decoding on a target of this process.

    Attributes:
        name, learns, optional, pid: see :class:`~suffixsvc_bench.serving.servers.subject.Subject`.
    """

    name = DIRECT
    learns = False
    optional = False
    pid = None

    def __init__(self, target: LlamaTarget) -> None:
        self._target = target
        self._texts = target.model.vocabulary.texts
        self._silent = target.eog_ids | target.model.textless_ids

    def restart(self) -> None:
        """Forget the prompts in the KV cache."""
        self._target.forget()

    def stop(self) -> None:
        """Do nothing: it is no process."""

    def answer(self, job: Job, max_tokens: int | None = None) -> Reply:
        """See :class:`~suffixsvc_bench.serving.servers.subject.Subject`."""
        arrived: list[tuple[float, tuple[int, ...]]] = []

        def on_step(step: StepRecord) -> None:
            arrived.append((time.perf_counter() - began, step.emitted))

        began = time.perf_counter()
        result = generate(
            self._target, job.prompt_ids, max_tokens=max_tokens or job.max_tokens, on_step=on_step
        )
        seconds = time.perf_counter() - began
        first = arrived[0][1] if arrived else ()
        return Reply(
            self.text(result.token_ids),
            len(result.token_ids),
            len(job.prompt_ids),
            result.prefill.reused,
            seconds,
            tuple((at, len(token_ids)) for at, token_ids in arrived),
            self.text(first),
            token_ids=result.token_ids,
            began=began,
        )

    def bytes_of(self, token_ids: Sequence[int]) -> bytes:
        """Bytes of tokens; those that a text does not contain have none."""
        return b"".join(self._texts[token] for token in token_ids if token not in self._silent)

    def text(self, token_ids: Sequence[int]) -> str:
        """Text of tokens."""
        return self.bytes_of(token_ids).decode("utf-8", "replace")

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self._target.eog_ids)

    @property
    def texts(self) -> Sequence[bytes]:
        """Bytes of every token."""
        return self._texts

    def logits(self, token_ids: Sequence[int]) -> FloatArray:
        """float32[n_vocab] of the token after a text, computed as one step of one token."""
        self._target.begin(token_ids, fresh=True)
        logits: FloatArray = self._target.compute((token_ids[-1],))[0]
        return logits
