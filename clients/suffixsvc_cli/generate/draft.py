"""Draft model of ``suffixsvc generate``: a running draft worker, or one that is started for the verb."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import suffixsvc_models as models
from suffixsvc.errors import VocabularyMismatchError
from suffixsvc.runtime.child_process import ChildProcesses
from suffixsvc_cli.generate.options import is_address
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.layers.retokenized import RetokenizedLayer
from suffixsvc_driver.layers.worker_layer import WorkerOptions
from suffixsvc_driver.profile.settings_file import DraftModelSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.tokenizer import LlamaTokenizer
from suffixsvc_driver.workers.client.interface import DraftWorker
from suffixsvc_driver.workers.pool.connecting import connect
from suffixsvc_driver.workers.pool.pool import WorkerPool

__all__ = ["check_draft", "draft_model"]


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
        models.resolve(draft)


@contextmanager
def draft_model(
    draft: str,
    target: LlamaModel,
    settings: DraftModelSettings,
    curve: CostCurve,
    notify: Callable[[str], None],
    *,
    threads: int,
    context_size: int,
) -> Iterator[Layer]:
    """Open the draft model layer.

    A model gets its own worker process, which is stopped at the end of the block. A model of another
    vocabulary drafts through text; with a worker's address that is not possible, as it does not report how
    its model tokenises.

    Args:
        draft: a model, or comma-separated addresses of workers, which form a pool.
        curve: cost of the target's steps.
        notify: called with messages for the user.
        threads, context_size: of the started worker.

    Raises:
        VocabularyMismatchError: it cannot draft for this target.
        ServiceUnavailableError: a worker does not answer, or did not start.
    """
    chosen = _options(settings, curve)
    if is_address(draft):
        with _connected(draft) as worker, closing(_direct(worker, target, chosen)) as layer:
            yield layer
        return
    model = models.resolve(draft)
    with tempfile.TemporaryDirectory(prefix="suffixsvc-") as name, ChildProcesses(Path(name)) as children:
        address = f"unix:{Path(name) / 'draft.sock'}"
        children.start_draft_worker(
            model, address, threads=threads, context_size=max(256, context_size), slots=1
        )
        with ExitStack() as stack:
            worker = stack.enter_context(_connected(address))
            made: DraftModelLayer | RetokenizedLayer
            try:
                made = _direct(worker, target, chosen)
            except VocabularyMismatchError as mismatch:
                other = stack.enter_context(LlamaModel(model, vocab_only=True))
                made = through_text = _through_text(worker, target, other, chosen)
                kept = f"{through_text.fit.kept_tokens:.1%}"
                notify(
                    f"{model.name} drafts through text, which keeps {kept} of its tokens: {mismatch.message}"
                )
            yield stack.enter_context(closing(made))


def _connected(address: str) -> DraftWorker:
    addresses = address.split(",")
    return connect(address) if len(addresses) == 1 else WorkerPool(addresses)


def _direct(worker: DraftWorker, target: LlamaModel, options: WorkerOptions) -> DraftModelLayer:
    return DraftModelLayer(worker, target.vocabulary, **options)


def _through_text(
    worker: DraftWorker, target: LlamaModel, other: LlamaModel, options: WorkerOptions
) -> RetokenizedLayer:
    return RetokenizedLayer(worker, LlamaTokenizer(target), LlamaTokenizer(other), **options)


def _options(settings: DraftModelSettings, curve: CostCurve) -> WorkerOptions:
    return {
        "p_min": settings.p_min,
        "curve": curve,
        "top_k": settings.top_k,
        "max_draft_tokens": settings.max_draft_tokens,
    }
