"""Draft model of ``suffixsvc generate``: a running draft worker, or one that is started for the verb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.draft_models import DraftModels, DraftProcess
from suffixsvc_driver.layers.worker_layer import WorkerOptions
from suffixsvc_driver.profile.settings_file import DraftModelSettings
from suffixsvc_driver.targets.llama.model import LlamaModel

#: timeouts of the layer that differ from its defaults
TIMEOUTS: WorkerOptions = {}


@contextmanager
def draft_model(
    draft: str,
    target: LlamaModel,
    settings: DraftModelSettings,
    curve: CostCurve,
    notify: Callable[[str], None],
    process: DraftProcess,
) -> Iterator[Layer]:
    """Open the draft model layer.

    Args:
        draft, process: see :class:`~suffixsvc_driver.layers.draft_models.DraftModels`.
        curve: cost of the target's steps.
        notify: called with messages for the user.

    Raises:
        As :class:`~suffixsvc_driver.layers.draft_models.DraftModels`.
    """
    options: WorkerOptions = {
        "p_min": settings.p_min,
        "curve": curve,
        "top_k": settings.top_k,
        "max_draft_tokens": settings.max_draft_tokens,
        **TIMEOUTS,
    }
    with DraftModels(draft, target, process) as opened, closing(opened.layer(**options)) as layer:
        if opened.through_text is not None:
            why, kept = opened.through_text
            notify(f"{opened.name} drafts through text, which keeps {kept:.1%} of its tokens: {why}")
        yield layer
