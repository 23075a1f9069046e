"""SGLang: what its NGRAM algorithm drafts from, replaced by the suffix cache.

    SUFFIXSVC_ADAPTER_TARGET=unix:/run/suffixsvc.sock SUFFIXSVC_ADAPTER_NAMESPACE=acme/model \\
        python -m sglang.launch_server --model-path ... --speculative-algorithm NGRAM

Where this package is installed, SGLang finds :func:`register` among its plugins (entry points of the group
``sglang.srt.plugins``). It does something only where one of our variables is set: then NGRAM's worker gets a
:class:`SuffixCorpus` in the place of its n-gram trie. All else of NGRAM, its options and the verification
included, stays SGLang's.

    worker      ── whole prompts ──>  see_prompts     by a hook: the trie is only shown the ends of sequences
    worker      ── batch_get ──────>  a tree of fixed width and its mask, for each request
    worker      ── batch_put ──────>  nothing: the next batch_get says the same, with names
    worker      ── erase_match_state  the requests that left the batch: what they wrote is kept
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
from suffixsvc_driver.adapters.backends import PREFIX, open_tracker, read_settings
from suffixsvc_driver.adapters.session_tracker import SessionTracker
from suffixsvc_driver.adapters.tracker_types import Asked, TrackerConfig
from suffixsvc_driver.adapters.tracking import Tracking
from suffixsvc_driver.adapters.tree_mask import tree_and_mask

__all__ = ["SuffixCorpus", "register"]

_log = structlog.get_logger(__name__)

_WORKER: Final = "sglang.srt.speculative.ngram_worker.NGRAMWorker"


class SuffixCorpus(Tracking):
    """The methods that SGLang calls on its ``NgramCorpus``. One thread, the scheduler's.

    Args:
        tracker: what drafts: trees, or chains where the attention backend takes no others.
        draft_token_num: the width of a verified tree, the last real token included.
    """

    def __init__(self, tracker: SessionTracker, draft_token_num: int) -> None:
        self.tracker = tracker
        self.draft_token_num = draft_token_num
        self.remaining_token_budget = 0
        self._prompts: dict[str, Sequence[int]] = {}
        self._told: dict[str, int] = {}  # tokens, by request
        self._failed = False

    # ---------------------------------------------------------------------------------------- drafting

    def see_prompts(self, prompts: Mapping[str, Sequence[int]]) -> None:
        """Whole prompts of the requests of a batch; kept until they are drafted for."""
        for request, prompt in prompts.items():
            if request not in self._told:
                self._prompts[request] = prompt

    def batch_get(
        self, req_ids: Sequence[str], batch_tokens: Sequence[Sequence[int]], total_lens: Sequence[int]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """A tree for every request. Nothing is raised.

        Args:
            req_ids: names.
            batch_tokens: the last tokens of each, the newest last.
            total_lens: how many there are of each, from the prompt's first on.

        Returns:
            int64[requests * width] tokens and int64[requests * width * width] masks, see
            :func:`tree_and_mask`; a root alone where nothing is known.
        """
        n, width = len(req_ids), self.draft_token_num
        drafts = [Draft.empty()] * n
        try:
            asked = [
                self._ask(request, list(tail), int(total))
                for request, tail, total in zip(req_ids, batch_tokens, total_lens, strict=True)
            ]
            drafts = self.tracker.draft_many(asked)
        except Exception as error:  # it would end the scheduler
            self._complain(error)
        tokens, masks = np.empty((n, width), np.int64), np.empty((n, width, width), np.int64)
        for i, draft in enumerate(drafts):
            tokens[i], masks[i] = tree_and_mask(_last(batch_tokens, i), draft, width)
        return tokens.reshape(-1), masks.reshape(-1)

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Nothing: these are ends of sequences without names, and the next :meth:`batch_get` shows them."""

    def erase_match_state(self, req_ids: Iterable[str]) -> None:
        """These requests left the batch: what they wrote is kept. One that comes back begins anew."""
        for request in req_ids:
            self._told.pop(request, None)
            self._prompts.pop(request, None)
            self.tracker.end(request)

    def synchronize(self) -> None:
        """Nothing waits."""

    def reset(self) -> None:
        """All requests are over. What they wrote is kept: other processes may draft from it."""
        self._told.clear()
        self._prompts.clear()
        self.tracker.end_all()

    def _ask(self, request: str, tail: list[int], total: int) -> Asked:
        prompt = self._prompts.pop(request, None)
        before = self._told.get(request)
        self._told[request] = total
        if before is not None:
            return Asked(tail, total - len(tail), request, written=total - before)
        if prompt is not None and 0 <= total - len(prompt) <= len(tail):
            new = tail[len(tail) - (total - len(prompt)) :]
            return Asked([*prompt, *new], 0, request, written=len(new))
        return Asked(tail, total - len(tail), request)

    # -------------------------------------------------------------------------------- external corpora

    def load_external_corpus_named(self, corpus_id: str, chunks: Iterable[Sequence[int]]) -> int:
        """Refused: InvalidInputError (a ValueError, as SGLang's own)."""
        raise _no_corpora(corpus_id)

    def commit_external_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """Follows a load that was not refused: there is none."""

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Refused: InvalidInputError."""
        raise _no_corpora(corpus_id)

    def list_external_corpora(self) -> dict[str, int]:
        """None."""
        return {}

    def _complain(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            _log.warning("no drafts: SGLang's batches are not what they were", error=repr(error)[:300])


def register() -> None:
    """SGLang's plugin: NGRAM drafts from the suffix cache, if a variable ``SUFFIXSVC_ADAPTER_...`` is set."""
    if not any(name.startswith(PREFIX) for name in os.environ):
        return
    from sglang.srt.plugins.hook_registry import (  # noqa: PLC0415 - only SGLang calls this
        HookRegistry,
        HookType,
    )

    HookRegistry.register(f"{_WORKER}.__init__", after_worker_init, HookType.AFTER)
    HookRegistry.register(f"{_WORKER}._prepare_draft_tokens", before_prepare_draft_tokens, HookType.BEFORE)


def after_worker_init(result: None, worker: Any, *_: Any, **__: Any) -> None:
    """Give an ``NGRAMWorker`` that has just been made our corpus.

    Raises:
        InvalidConfigError: several ranks, or settings that make no sense. StoreError. SGLang does not start.
    """
    arguments = worker.server_args
    if arguments.tp_size * arguments.pp_size != 1:
        # Every rank makes drafts of its own, and all must be the same: a reply that comes too late for one of
        # them would have them verify different trees.
        raise InvalidConfigError(
            "the suffix cache cannot draft for several ranks of SGLang",
            expected="--tp-size 1 and --pp-size 1 (data parallelism is possible)",
            got=f"--tp-size {arguments.tp_size}, --pp-size {arguments.pp_size}",
            remedy="Unset the SUFFIXSVC_ADAPTER_... variables to have SGLang's own n-grams.",
        )
    width = worker.draft_token_num
    config = TrackerConfig(
        max_draft_tokens=max(1, width - 1),
        verify_cost=0.0,  # the tree is as wide whatever is in it
        tree=worker.topk > 1,
        vocab_size=worker.model_runner.model_config.vocab_size,
        max_sequences=2 * (arguments.max_running_requests or 256),
    )
    # so many of a request's last tokens are shown: what a step can write, and one that is known already
    worker.max_trie_depth = max(worker.max_trie_depth, width + 1)
    worker.ngram_corpus = SuffixCorpus(open_tracker(read_settings(), config), width)


def before_prepare_draft_tokens(worker: Any, batch: Any) -> None:
    """Show the corpus the whole prompts: what it is asked with are the last few tokens of each request."""
    corpus = worker.ngram_corpus
    if isinstance(corpus, SuffixCorpus):
        corpus.see_prompts({request.rid: request.origin_input_ids_unpadded for request in batch.reqs})


def _last(batch_tokens: Sequence[Sequence[int]], i: int) -> int:
    try:
        return int(batch_tokens[i][-1])
    except (IndexError, TypeError, ValueError):
        return 0


def _no_corpora(corpus_id: str) -> InvalidInputError:
    return InvalidInputError(
        f"the external corpus {corpus_id!r} is not taken here",
        expected="corpora of the suffix cache",
        remedy="Build it into a namespace (suffixsvc build --data) and name that: SUFFIXSVC_ADAPTER_READS.",
    )
