"""vLLM: a proposer for its ``custom_class`` method.

    vllm serve MODEL --shutdown-timeout 20 \\
      --speculative-config '{"method": "custom_class", "num_speculative_tokens": 16,
                             "model": "suffixsvc_driver.adapters.vllm_proposer.SuffixProposer"}' \\
      --additional-config '{"suffixsvc": {"target": "unix:/run/suffixsvc.sock", "namespace": "acme/model"}}'

vLLM hands over the rows of its batch: what was sampled in this step, how many tokens each row holds, and the
buffer they stand in. It names no request, swaps rows as it likes, writes drafts into the buffer after the
tokens, and never says that a request is over. A :class:`RequestTable` reads the rest from the model runner
that calls: which request each row holds and where its response ends. A :class:`SessionTracker` has a session
for each; an output is kept when its response ends. An exception would end the engine: nothing is raised once
it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import structlog

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.adapters.backends import open_tracker, read_settings
from suffixsvc_driver.adapters.session_tracker import SessionTracker
from suffixsvc_driver.adapters.tracker_types import Asked, TrackerConfig, TrackerStats
from suffixsvc_driver.adapters.vllm_requests import RequestTable

__all__ = ["SuffixProposer"]

_log = structlog.get_logger(__name__)

#: rows that leave the batch and come back (preempted ones) are still known then
_SEQUENCES_PER_ROW: Final = 2


class SuffixProposer:
    """Proposes what the suffix cache knows.

    Args:
        vllm_config: vLLM's own. ``additional_config["suffixsvc"]`` says which cache (see
            :mod:`suffixsvc_driver.adapters.backends`); without it the environment does.

    Raises:
        InvalidConfigError, StoreError: vLLM does not start.
    """

    def __init__(self, vllm_config: Any) -> None:
        speculative = vllm_config.speculative_config
        self.num_speculative_tokens: int = speculative.num_speculative_tokens
        self._failed = False
        self.tracker: SessionTracker | None = None
        self._requests = RequestTable(vllm_config.model_config)
        if _is_redundant(vllm_config.parallel_config):
            return
        config = TrackerConfig(
            max_draft_tokens=self.num_speculative_tokens,
            vocab_size=vllm_config.model_config.get_vocab_size(),
            max_sequences=_SEQUENCES_PER_ROW * vllm_config.scheduler_config.max_num_seqs,
        )
        settings = read_settings(_own_part(vllm_config.additional_config))
        self.tracker = open_tracker(settings, config, self._requests.is_over)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Draft for every row that has just sampled.

        Args:
            sampled_token_ids: what each row sampled in this step, beyond the end of its response too; nothing
                while its prompt is being read.
            num_tokens_no_spec: int32[rows or more], the tokens of each row, those included.
            token_ids_cpu: int32[rows or more, length], the tokens, and unused room.
            slot_mappings: not used.

        Returns:
            A list per row, empty where nothing is known or worth it. Nothing is raised.
        """
        try:
            return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception as error:  # it would end the engine
            if not self._failed:
                self._failed = True
                _log.warning("no drafts: vLLM's rows are not what they were", error=repr(error)[:300])
            return (
                [[] for _ in range(len(sampled_token_ids))] if hasattr(sampled_token_ids, "__len__") else []
            )

    def load_model(self, *_: object, **__: object) -> None:
        """Called when vLLM has loaded its model: there is none to load here, but a tokenizer."""
        if self.tracker is not None:
            self._requests.load_tokenizer()

    @property
    def stats(self) -> TrackerStats:
        """What was drafted, and what came true."""
        return TrackerStats() if self.tracker is None else self.tracker.stats

    def close(self) -> None:
        """Keep what was written. vLLM does not call it; the end of the process does."""
        if self.tracker is not None:
            self.tracker.close()

    def _propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
    ) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if self.tracker is None:
            return drafts
        responses = self._requests.responses(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        asked: dict[int, Asked] = {}
        for row, response in responses.items():
            asked[row] = Asked(
                token_ids_cpu[row, : response.end],
                hint=response.name,
                named=response.named,
                written=response.written,
                max_draft_tokens=max(0, response.room - 1),  # the step that verifies writes one more
                stop_after=response.end_ids,
                last=response.ended,
            )
        for row, draft in zip(asked, self.tracker.draft_many(list(asked.values())), strict=True):
            drafts[row] = draft.token_ids.tolist()
        return drafts


def _is_redundant(parallel: Any) -> bool:
    """The ranks of a group see the same tokens, and the scheduler takes the drafts of the first: the others
    need not draft, and need not remember everything once more."""
    group: int = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
    rank: int = parallel.rank
    return rank % group != 0


def _own_part(additional_config: object) -> Mapping[str, Any] | None:
    if not isinstance(additional_config, Mapping):
        return None
    part = additional_config.get("suffixsvc")
    if part is not None and not isinstance(part, Mapping):
        raise InvalidConfigError(
            'additional_config["suffixsvc"] is no mapping', expected="names and values", got=repr(part)[:80]
        )
    return part
