"""Draft model of a target: a worker process that is started for it, or running workers; a layer for each
generation.

    DraftModels ── worker process, or connections ── vocabulary check, once
        └── layer(principal) ── a session on the worker, for one generation
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Unpack

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.layers.draft_process import DraftProcess, RunningDraftProcess
from suffixsvc_driver.layers.retokenized import RetokenizedLayer
from suffixsvc_driver.layers.worker_layer import WorkerOptions
from suffixsvc_driver.retokenizing import compare_texts
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.tokenizer import LlamaTokenizer
from suffixsvc_driver.workers.client.interface import DraftWorker
from suffixsvc_driver.workers.pool.connecting import connect
from suffixsvc_driver.workers.pool.pool import WorkerPool
from suffixsvc_models import resolve

__all__ = ["DraftModels", "DraftProcess", "check_draft", "is_address"]


def is_address(text: str) -> bool:
    """Return True for an address of a server, False for a model."""
    host, _, port = text.rpartition(":")
    return text.startswith(("unix:", "http://", "https://")) or (
        bool(host) and port.isascii() and port.isdigit() and "/" not in text
    )


def check_draft(draft: str) -> None:
    """Check, before anything is loaded, that this is a model or a valid address.

    Raises:
        InvalidConfigError: the address is invalid.
        ModelError: the model does not exist.
    """
    if is_address(draft):
        for address in draft.split(","):
            connect(address).close()
    else:
        resolve(draft)


class DraftModels(ClosedOnExit):
    """The draft model of a target. Close it after the last layer.

    A model gets its own worker process, which is stopped at the end. A model of another vocabulary drafts
    through text; with a worker's address that is not possible, as it does not report how its model tokenises.

    Args:
        draft: a model, or comma-separated addresses of workers, which form a pool.
        target: the target's model.
        process: of the started worker.

    Attributes:
        name: of the draft model.
        process: the started worker; None if it runs already.
        through_text: why it drafts through text, and the share of its tokens that this keeps; None if the
            vocabularies match.

    Raises:
        ModelError: the model does not exist.
        VocabularyMismatchError: it cannot draft for this target.
        ServiceUnavailableError: a worker does not answer, or did not start.
        UnauthenticatedError: a worker does not know the client that the environment names.
        InvalidConfigError: the environment names an invalid client (:mod:`suffixsvc.transport.identity`).
    """

    def __init__(self, draft: str, target: LlamaModel, process: DraftProcess) -> None:
        self._vocabulary = target.vocabulary
        self.through_text: tuple[str, float] | None = None
        self.process: RunningDraftProcess | None = None
        with ExitStack() as stack:
            addresses, model, identity = draft.split(","), None, ClientIdentity()
            if is_address(draft):
                identity = ClientIdentity.from_environment()
            else:
                model = resolve(draft)
                self.process = stack.enter_context(RunningDraftProcess(model, process))
                addresses = [self.process.address]
            opened: DraftWorker = (
                connect(addresses[0], identity)
                if len(addresses) == 1
                else WorkerPool(addresses, identity=identity)
            )
            self._worker = stack.enter_context(opened)
            self._tokenizers: tuple[LlamaTokenizer, LlamaTokenizer] | None = None
            try:
                self._description = self._worker.check_vocabulary(self._vocabulary)
            except VocabularyMismatchError as mismatch:
                if model is None:
                    raise
                other = stack.enter_context(LlamaModel(model, vocab_only=True))
                self._compare(target, other, mismatch)
            self.name = self._description.model
            self._opened = stack.pop_all()

    def _compare(self, target: LlamaModel, other: LlamaModel, mismatch: VocabularyMismatchError) -> None:
        of_target, of_draft = LlamaTokenizer(target), LlamaTokenizer(other)
        self._description = self._worker.check_vocabulary(of_draft.vocabulary)
        self._fit = compare_texts(of_target, of_draft)
        self._tokenizers = of_target, of_draft
        self.layer().close()  # raises if texts do not round-trip
        self.through_text = mismatch.message, self._fit.kept_tokens

    def layer(self, **options: Unpack[WorkerOptions]) -> DraftModelLayer | RetokenizedLayer:
        """Return the layer of one generation, which the caller closes. Any thread; never blocks.

        Args:
            options: see :class:`~suffixsvc_driver.layers.worker_layer.WorkerOptions`.
        """
        if self._tokenizers is None:
            return DraftModelLayer(self._worker, self._vocabulary, description=self._description, **options)
        target, draft = self._tokenizers
        return RetokenizedLayer(
            self._worker, target, draft, fit=self._fit, description=self._description, **options
        )

    @property
    def up(self) -> bool:
        """Whether the started process runs, or a worker at an address replied when it was last needed."""
        return self._worker.up if self.process is None else self.process.child.running

    def stop_restarting(self) -> None:
        """Do not start the worker process again if it ends."""
        if self.process is not None:
            self.process.stop_restarting()

    def close(self) -> None:
        """End the connections, and the worker process if it was started here. Idempotent."""
        self._opened.close()
