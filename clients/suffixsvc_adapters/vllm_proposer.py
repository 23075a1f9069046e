"""Adapter for vLLM: a proposer for its ``custom_class`` method.

    vllm serve MODEL --shutdown-timeout 20 \\
      --speculative-config '{"method": "custom_class", "num_speculative_tokens": 16,
                             "model": "suffixsvc_adapters.vllm_proposer.SuffixProposer"}' \\
      --additional-config '{"suffixsvc": {"target": "unix:/run/suffixsvc.sock", "namespace": "acme/model"}}'

vLLM passes the rows of its batch: the tokens sampled in this step, the length of each row, and the buffer of
their tokens. It passes no request ids, reorders rows, writes drafts into the buffer after the tokens, and
does not report the end of a request. A :class:`RequestTable` reads the rest from the calling model runner:
the request of each row and where its response ends. A :class:`SessionTracker` has a session for each request;
an output is stored when its response ends. An exception would end the engine: :meth:`SuffixProposer.propose`
raises none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import structlog

from suffixsvc_adapters.backends import open_tracker, read_settings
from suffixsvc_adapters.tracking.adapter_base import AdapterBase
from suffixsvc_adapters.tracking.tracker_types import TrackerConfig
from suffixsvc_adapters.vllm_requests import RequestTable

_log = structlog.get_logger(__name__)

#: requests that leave the batch and return (preempted ones) keep their sequences
_SEQUENCES_PER_ROW: Final = 2


class SuffixProposer(AdapterBase):
    """Proposes drafts of the suffix cache.

    Args:
        vllm_config: vLLM's own. ``additional_config["suffixsvc"]`` names the cache (see
            :mod:`suffixsvc_adapters.backends`); without it the environment does.

    Raises:
        InvalidConfigError, StoreError: invalid settings or an unusable folder; vLLM does not start.
    """

    def __init__(self, vllm_config: Any) -> None:
        speculative = vllm_config.speculative_config
        self.num_speculative_tokens: int = speculative.num_speculative_tokens
        self._failed = False
        self._requests = RequestTable(vllm_config.model_config)
        if _is_redundant(vllm_config.parallel_config):
            return
        config = TrackerConfig(
            max_draft_tokens=self.num_speculative_tokens,
            vocab_size=vllm_config.model_config.get_vocab_size(),
            max_sequences=_SEQUENCES_PER_ROW * vllm_config.scheduler_config.max_num_seqs,
        )
        settings = read_settings(_own_settings(vllm_config.additional_config))
        self.tracker = open_tracker(settings, config, self._requests.is_over)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Draft for every row that has just sampled. Never raises.

        Args:
            sampled_token_ids: tokens that each row sampled in this step, also beyond the end of its response;
                none during its prefill.
            num_tokens_no_spec: int32[rows or more], length of each row, the sampled tokens included.
            token_ids_cpu: int32[rows or more, length], the tokens of each row, then unused space.
            slot_mappings: not used.

        Returns:
            A list per row, empty if there is no match or none that pays.
        """
        try:
            return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception as error:  # it would end the engine
            if not self._failed:
                self._failed = True
                _log.warning("no drafts: vLLM's rows have an unknown layout", error=repr(error)[:300])
            return (
                [[] for _ in range(len(sampled_token_ids))] if hasattr(sampled_token_ids, "__len__") else []
            )

    def load_model(self, *_: object, **__: object) -> None:
        """Load the tokenizer. vLLM calls this after it has loaded its model."""
        if self.tracker is not None:
            self._requests.load_tokenizer()

    def _propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
    ) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if self.tracker is None:
            return drafts
        requests = self._requests.draft_requests(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        for row, draft in zip(requests, self.tracker.draft_many(list(requests.values())), strict=True):
            drafts[row] = draft.token_ids.tolist()
        return drafts


def _is_redundant(parallel: Any) -> bool:
    """Return whether this rank's drafts are unused: the ranks of a group have the same tokens, and the
    scheduler takes the drafts of the first."""
    return bool(parallel.rank % (parallel.tensor_parallel_size * parallel.prefill_context_parallel_size))


def _own_settings(additional_config: object) -> Any:
    return additional_config.get("suffixsvc") if isinstance(additional_config, Mapping) else None
