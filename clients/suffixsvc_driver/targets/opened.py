"""A model that is open for decoding: what the targets of one generation and of several have in common."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from suffixsvc.types import TokenIds
from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.sampling import Sampling
from suffixsvc_driver.targets.attention import choose_flash_attention
from suffixsvc_driver.targets.choosers import Choosers
from suffixsvc_driver.targets.llama_context import ContextSettings, LlamaContext
from suffixsvc_driver.targets.llama_model import LlamaModel
from suffixsvc_driver.targets.rollback import find_rollback

__all__ = ["OpenedModel"]


class OpenedModel:
    """A model, a context on it, and the way its states go back. Use it as a context manager. Not thread-safe.

    Args:
        model: a path to a GGUF file, or a loaded model (which then stays the caller's to close).
        unified: all sequences share one memory, cell by cell, whether there are branches or not.
        lanes: generations that each have ``settings.branches`` of their own.
    """

    def __init__(
        self, model: str | Path | LlamaModel, settings: ContextSettings, *, unified: bool, lanes: int
    ) -> None:
        self._owns_model = not isinstance(model, LlamaModel)
        self.model = model if isinstance(model, LlamaModel) else LlamaModel(model)
        with ExitStack() as opened:  # what fails below leaves nothing behind
            if self._owns_model:
                opened.callback(self.model.close)
            self._open(settings, opened, unified=unified, lanes=lanes)
            opened.pop_all()

    def _open(self, settings: ContextSettings, opened: ExitStack, *, unified: bool, lanes: int) -> None:
        #: flash attention decided
        self.settings = settings = replace(
            settings, flash_attention=choose_flash_attention(self.model, settings)
        )
        # A recurrent state is that of one path; and a window that forgets takes only cells again that one
        # sequence alone holds: neither shares its memory cell by cell.
        self._shares = not self.model.recurrent and (settings.full_window or not self.model.window)
        self._branches = settings.branches if self._shares else 0
        self.context = LlamaContext(
            self.model, settings, unified=unified or self._branches > 0, extra=lanes * self._branches
        )
        opened.callback(self.context.close)
        self.rollback = find_rollback(self.context)
        self._choosers = Choosers(self.model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free context and, if it was loaded here, model. Idempotent."""
        self.context.close()
        if self._owns_model:
            self.model.close()

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def context_size(self) -> int:
        return self.context.slot_size

    @property
    def max_width(self) -> int:
        return self.settings.max_width

    @property
    def eog_ids(self) -> frozenset[int]:
        return self.model.eog_ids

    @property
    def replays(self) -> bool:
        """Whether accepted tokens are computed again where a draft was accepted in part."""
        return self.rollback.replays

    def chooser(self, sampling: Sampling, prompt_ids: TokenIds) -> Chooser:
        """What chooses the tokens of one generation behind this prompt.

        Raises:
            InvalidTokensError: the prompt.
            InvalidConfigError: a bias for a token outside the vocabulary.
            GrammarError: a grammar that is malformed, or of which this model can write nothing.
        """
        return self._choosers.make(sampling, prompt_ids)
