"""Shared prefill: each prompt is computed once for all variants that answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suffixsvc_driver.targets.single import LlamaTarget, Snapshot

#: prepares the targets for a prompt
Prefill = Callable[[Sequence[int]], None]


class SharedPrefill:
    """One target computes a prompt; all adopt copies of its KV cache, so that none has an advantage.

    Args:
        targets: of the same model, with the same settings.
    """

    def __init__(self, targets: Sequence[LlamaTarget]) -> None:
        self._targets = targets
        self._snapshots: dict[tuple[int, ...], Snapshot] = {}

    def __call__(self, prompt_ids: Sequence[int]) -> None:
        """Prepare all targets for a prompt."""
        prompt = tuple(prompt_ids)
        if prompt not in self._snapshots:
            self._targets[0].begin(prompt)
            self._snapshots[prompt] = self._targets[0].snapshot()
        for target in self._targets:
            target.restore(self._snapshots[prompt])
