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
from suffixsvc_driver.targets.llama.offload import Offload
from suffixsvc_driver.targets.llama.tokenizer import LlamaTokenizer
from suffixsvc_driver.workers.client.interface import DraftWorker
from suffixsvc_driver.workers.pool.connecting import connect
from suffixsvc_driver.workers.pool.pool import WorkerPool

#: timeouts of the layer that differ from its defaults
TIMEOUTS: WorkerOptions = {}


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
    offload: Offload,
) -> Iterator[Layer]:
    """Open the draft model layer.

    A model gets its own worker process, which is stopped at the end of the block. A model of another
    vocabulary drafts through text; with a worker's address that is not possible, as it does not report how
    its model tokenises.

    Args:
        draft: a model, or comma-separated addresses of workers, which form a pool.
        curve: cost of the target's steps.
        notify: called with messages for the user.
        threads, context_size, offload: of the started worker.

    Raises:
        VocabularyMismatchError: it cannot draft for this target.
        ServiceUnavailableError: a worker does not answer, or did not start.
    """
    options: WorkerOptions = {
        "p_min": settings.p_min,
        "curve": curve,
        "top_k": settings.top_k,
        "max_draft_tokens": settings.max_draft_tokens,
        **TIMEOUTS,
    }
    with ExitStack() as stack:
        addresses, model = draft.split(","), None
        if not is_address(draft):
            model = models.resolve(draft)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="suffixsvc-")))
            addresses = [f"unix:{folder / 'draft.sock'}"]
            stack.enter_context(ChildProcesses(folder)).start_draft_worker(
                model,
                addresses[0],
                threads=threads,
                context_size=max(256, context_size),
                slots=1,
                options=offload.arguments(),
            )
        opened: DraftWorker = connect(addresses[0]) if len(addresses) == 1 else WorkerPool(addresses)
        worker = stack.enter_context(opened)
        layer: DraftModelLayer | RetokenizedLayer
        try:
            layer = DraftModelLayer(worker, target.vocabulary, **options)
        except VocabularyMismatchError as mismatch:
            if model is None:
                raise
            other = stack.enter_context(LlamaModel(model, vocab_only=True))
            layer = RetokenizedLayer(worker, LlamaTokenizer(target), LlamaTokenizer(other), **options)
            kept = f"{layer.fit.kept_tokens:.1%}"
            notify(f"{model.name} drafts through text, which keeps {kept} of its tokens: {mismatch.message}")
        yield stack.enter_context(closing(layer))
