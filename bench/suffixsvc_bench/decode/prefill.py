"""Each prompt is computed once for all ways that answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suffixsvc_driver.targets.llama import LlamaTarget, Snapshot

__all__ = ["Prefill", "SharedPrefill"]

#: makes the targets ready for a prompt
Prefill = Callable[[Sequence[int]], None]


class SharedPrefill:
    """One target computes a prompt, all go on with copies of what came out: nobody has the better memory.

    Args:
        targets: of the same model, with the same settings.
    """

    def __init__(self, targets: Sequence[LlamaTarget]) -> None:
        self._targets = targets
        self._known: dict[tuple[int, ...], Snapshot] = {}

    def __call__(self, prompt_ids: Sequence[int]) -> None:
        prompt = tuple(prompt_ids)
        if prompt not in self._known:
            self._targets[0].begin(prompt)
            self._known[prompt] = self._targets[0].snapshot()
        for target in self._targets:
            target.adopt(self._known[prompt])
