"""Adapter for SGLang: a plugin that replaces the corpus of its NGRAM algorithm by the suffix cache.

    SUFFIXSVC_ADAPTER_TARGET=unix:/run/suffixsvc.sock SUFFIXSVC_ADAPTER_NAMESPACE=acme/model \\
        python -m sglang.launch_server --model-path ... --speculative-algorithm NGRAM

Where this package is installed, SGLang finds :func:`register` among its plugins (entry points of the group
``sglang.srt.plugins``). Unless one of our variables is set, it does nothing. With one, NGRAM's worker gets a
:class:`SuffixCorpus` instead of its n-gram trie. The rest of NGRAM, its options and the verification
included, stays SGLang's.

    worker  ── whole prompts ──────>  add_prompts: by a hook; the trie gets the ends of sequences only
    worker  ── batch_get ──────────>  returns a tree of fixed width and its mask for each request
    worker  ── batch_put ──────────>  does nothing: the next batch_get has the same tokens, with names
    worker  ── erase_match_state ──>  ends the requests that left the batch and stores their outputs
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import structlog

from suffixsvc.errors import InvalidConfigError, InvalidInputError
from suffixsvc.types import Draft
from suffixsvc_adapters.backends import PREFIX, open_tracker, read_settings
from suffixsvc_adapters.tracking.adapter_base import AdapterBase
from suffixsvc_adapters.tracking.session_tracker import SessionTracker
from suffixsvc_adapters.tracking.tracker_types import DraftRequest, TrackerConfig
from suffixsvc_adapters.tracking.tree_mask import tree_and_mask

_log = structlog.get_logger(__name__)

_WORKER: Final = "sglang.srt.speculative.ngram_worker.NGRAMWorker"


class SuffixCorpus(AdapterBase):
    """The methods that SGLang calls on its ``NgramCorpus``, all on the scheduler's thread.

    Args:
        tracker: source of the drafts: trees, or chains if the attention backend supports no others.
        draft_token_num: the width of a verified tree, the last real token included.
    """

    def __init__(self, tracker: SessionTracker, draft_token_num: int) -> None:
        self.tracker: SessionTracker = tracker
        self.draft_token_num = draft_token_num
        self.remaining_token_budget = 0
        self._prompts: dict[str, Sequence[int]] = {}
        self._sent: dict[str, int] = {}  # tokens, by request
        self._failed = False

    # ---------------------------------------------------------------------------------------- drafting

    def add_prompts(self, prompts: Mapping[str, Sequence[int]]) -> None:
        """Store the whole prompts of a batch's requests until their first draft."""
        for request, prompt in prompts.items():
            if request not in self._sent:
                self._prompts[request] = prompt

    def batch_get(
        self, req_ids: Sequence[str], batch_tokens: Sequence[Sequence[int]], total_lens: Sequence[int]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Draft a tree for every request. Never raises.

        Args:
            req_ids: request ids.
            batch_tokens: the last tokens of each request, the newest last.
            total_lens: number of tokens of each request, the prompt included.

        Returns:
            int64[requests * width] tokens and int64[requests * width * width] masks, see
            :func:`tree_and_mask`; only a root where there is no draft.
        """
        n, width = len(req_ids), self.draft_token_num
        drafts = [Draft.empty()] * n
        try:
            requests = [
                self._draft_request(request, list(tail), int(total))
                for request, tail, total in zip(req_ids, batch_tokens, total_lens, strict=True)
            ]
            drafts = self.tracker.draft_many(requests)
        except Exception as error:  # it would end the scheduler
            self._log_once(error)
        tokens, masks = np.empty((n, width), np.int64), np.empty((n, width, width), np.int64)
        for i, draft in enumerate(drafts):
            tokens[i], masks[i] = tree_and_mask(_last(batch_tokens, i), draft, width)
        return tokens.reshape(-1), masks.reshape(-1)

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Do nothing: these are tails without request ids, and the next :meth:`batch_get` has them too."""

    def erase_match_state(self, req_ids: Iterable[str]) -> None:
        """End requests that left the batch and store their outputs. One that resumes is a new sequence."""
        for request in req_ids:
            self._sent.pop(request, None)
            self._prompts.pop(request, None)
            self.tracker.end(request)

    def synchronize(self) -> None:
        """Do nothing: insertions are synchronous."""

    def reset(self) -> None:
        """End all requests and store their outputs, from which other processes may draft."""
        self._sent.clear()
        self._prompts.clear()
        self.tracker.end_all()

    def _draft_request(self, request: str, tail: list[int], total: int) -> DraftRequest:
        prompt = self._prompts.pop(request, None)
        before = self._sent.get(request)
        self._sent[request] = total
        if before is not None:
            return DraftRequest(tail, total - len(tail), request, written=total - before)
        if prompt is not None and 0 <= total - len(prompt) <= len(tail):
            new = tail[len(tail) - (total - len(prompt)) :]
            return DraftRequest([*prompt, *new], 0, request, written=len(new))
        return DraftRequest(tail, total - len(tail), request)

    # -------------------------------------------------------------------------------- external corpora

    def load_external_corpus_named(self, corpus_id: str, chunks: Iterable[Sequence[int]]) -> int:
        """Raise InvalidInputError (a ValueError, as SGLang's own): external corpora are not supported."""
        raise _no_corpora(corpus_id)

    def commit_external_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """Do nothing: SGLang calls it only after a load that succeeded."""

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Raise InvalidInputError: external corpora are not supported."""
        raise _no_corpora(corpus_id)

    def list_external_corpora(self) -> dict[str, int]:
        """Return no corpora."""
        return {}

    def _log_once(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            _log.warning("no drafts: SGLang's batches have an unknown layout", error=repr(error)[:300])


def register() -> None:
    """Register the hooks of the plugin, if a variable ``SUFFIXSVC_ADAPTER_...`` is set."""
    if not any(name.startswith(PREFIX) for name in os.environ):
        return
    from sglang.srt.plugins.hook_registry import (  # noqa: PLC0415 - only SGLang calls this
        HookRegistry,
        HookType,
    )

    HookRegistry.register(f"{_WORKER}.__init__", after_worker_init, HookType.AFTER)
    HookRegistry.register(f"{_WORKER}._prepare_draft_tokens", before_prepare_draft_tokens, HookType.BEFORE)


def after_worker_init(result: None, worker: Any, *_: Any, **__: Any) -> None:
    """Replace the corpus of a new ``NGRAMWorker``. SGLang does not start if this raises.

    Raises:
        InvalidConfigError: several ranks, or invalid settings.
        StoreError: the folder of the cache cannot be used.
    """
    arguments = worker.server_args
    if arguments.tp_size * arguments.pp_size != 1:
        # Every rank would make its own drafts, and all must be equal: a reply that is late for one of the
        # ranks would have them verify different trees.
        raise InvalidConfigError(
            "the suffix cache cannot draft for several ranks of SGLang",
            expected="--tp-size 1 and --pp-size 1 (data parallelism is possible)",
            got=f"--tp-size {arguments.tp_size}, --pp-size {arguments.pp_size}",
            remedy="Unset the SUFFIXSVC_ADAPTER_... variables to use SGLang's own n-grams.",
        )
    width = worker.draft_token_num
    config = TrackerConfig(
        max_draft_tokens=max(1, width - 1),
        verify_cost=0.0,  # SGLang verifies the full width whatever is drafted
        tree=worker.topk > 1,
        vocab_size=worker.model_runner.model_config.vocab_size,
        max_sequences=2 * (arguments.max_running_requests or 256),
    )
    # the worker passes this many last tokens of a request: those that a step can emit, and one known token
    worker.max_trie_depth = max(worker.max_trie_depth, width + 1)
    worker.ngram_corpus = SuffixCorpus(open_tracker(read_settings(), config), width)


def before_prepare_draft_tokens(worker: Any, batch: Any) -> None:
    """Pass the whole prompts to the corpus: queries contain only the last few tokens of each request."""
    corpus = worker.ngram_corpus
    if isinstance(corpus, SuffixCorpus):
        corpus.add_prompts({request.rid: request.origin_input_ids_unpadded for request in batch.reqs})


def _last(batch_tokens: Sequence[Sequence[int]], i: int) -> int:
    try:
        return int(batch_tokens[i][-1])
    except (IndexError, TypeError, ValueError):
        return 0


def _no_corpora(corpus_id: str) -> InvalidInputError:
    return InvalidInputError(
        f"external corpus {corpus_id!r}: external corpora are not supported",
        remedy="Build it into a namespace (suffixsvc build --data) and name that: SUFFIXSVC_ADAPTER_READS.",
    )
