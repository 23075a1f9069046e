"""The draft model of ``suffixsvc generate``: a worker that runs somewhere, or one that is started for it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from suffixsvc_driver import models
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.layers.retokenized import RetokenizedLayer
from suffixsvc_driver.layers.worker_layer import WorkerOptions
from suffixsvc_driver.settings_file import DraftModelSettings
from suffixsvc_driver.targets.llama_model import LlamaModel
from suffixsvc_driver.targets.llama_tokenizer import LlamaTokenizer
from suffixsvc_driver.workers.connecting import connect
from suffixsvc_driver.workers.interface import DraftWorker
from suffixsvc_driver.workers.pool import WorkerPool

from suffixsvc.children import Children
from suffixsvc.cli.generate_options import is_address
from suffixsvc.errors import VocabularyMismatchError

__all__ = ["check_draft", "draft_model"]


def check_draft(draft: str) -> None:
    """Before anything is loaded: is there such a model, or can this be an address?

    Raises:
        InvalidConfigError, ModelError.
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
    say: Callable[[str], None],
    *,
    threads: int,
    context_size: int,
) -> Iterator[Layer]:
    """The layer that asks it. A model gets a worker of its own, which is gone when the block is left. One of
    another vocabulary drafts through text; a worker's address does not tell how its model cuts text.

    Args:
        draft: a model, or addresses of workers, by commas: several share the work as a pool.
        curve: what the target's steps cost.
        say: told what the user should know.
        threads, context_size: of the worker that is started.

    Raises:
        VocabularyMismatchError: it cannot draft for this target.
        ServiceUnavailableError: nobody answers, or the worker did not start.
    """
    chosen = _options(settings, curve)
    if is_address(draft):
        with _connected(draft) as worker, closing(_direct(worker, target, chosen)) as layer:
            yield layer
        return
    model = models.resolve(draft)
    with tempfile.TemporaryDirectory(prefix="suffixsvc-") as name, Children(Path(name)) as children:
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
                say(f"{model.name} drafts through text, which keeps {kept} of its tokens: {mismatch.message}")
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
