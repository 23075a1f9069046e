"""The draft model of ``suffixsvc generate``: a worker that runs somewhere, or one that is started for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suffixsvc_driver import models
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.settings_file import DraftModelSettings
from suffixsvc_driver.vocabulary import Vocabulary
from suffixsvc_driver.workers.connecting import connect
from suffixsvc_driver.workers.pool import WorkerPool

from suffixsvc.children import Children
from suffixsvc.cli.generate_options import is_address

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
    draft: str, target: Vocabulary, settings: DraftModelSettings, *, threads: int, context_size: int
) -> Iterator[Layer]:
    """The layer that asks it. A model gets a worker of its own, which is gone when the block is left.

    Args:
        draft: a model, or addresses of workers, by commas: several share the work as a pool.
        threads, context_size: of the worker that is started.

    Raises:
        VocabularyMismatchError: it cannot draft for this target.
        ServiceUnavailableError: nobody answers, or the worker did not start.
    """
    if is_address(draft):
        with _layer(draft, target, settings) as layer:
            yield layer
        return
    model = models.resolve(draft)
    with tempfile.TemporaryDirectory(prefix="suffixsvc-") as name, Children(Path(name)) as children:
        address = f"unix:{Path(name) / 'draft.sock'}"
        children.start_draft_worker(
            model, address, threads=threads, context_size=max(256, context_size), slots=1
        )
        with _layer(address, target, settings) as layer:
            yield layer


@contextmanager
def _layer(address: str, target: Vocabulary, settings: DraftModelSettings) -> Iterator[Layer]:
    addresses = address.split(",")
    worker = connect(address) if len(addresses) == 1 else WorkerPool(addresses)
    with worker as client:
        layer = DraftModelLayer(
            client,
            target,
            p_min=settings.p_min,
            top_k=settings.top_k,
            max_draft_tokens=settings.max_draft_tokens,
        )
        try:
            yield layer
        finally:
            layer.close()
