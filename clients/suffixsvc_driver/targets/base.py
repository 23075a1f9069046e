"""Base class of llama.cpp targets: a model, a context on it, and its rollback method."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from suffixsvc.types import TokenIds
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.targets.llama.attention import choose_flash_attention
from suffixsvc_driver.targets.llama.context import ContextSettings, LlamaContext
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.rollback import detect_rollback
from suffixsvc_driver.targets.sampler_factory import SamplerFactory

__all__ = ["TargetBase"]


class TargetBase:
    """A model, a context on it, and its rollback method. Use it as a context manager. Not thread-safe.

    Args:
        model: a path to a GGUF file, or a loaded model (which the caller closes).
        unified: all sequences share one KV memory, with or without branches.
        lanes: number of generations, each with ``settings.branches`` branches.
    """

    def __init__(
        self, model: str | Path | LlamaModel, settings: ContextSettings, *, unified: bool, lanes: int
    ) -> None:
        self._owns_model = not isinstance(model, LlamaModel)
        self.model = model if isinstance(model, LlamaModel) else LlamaModel(model)
        with ExitStack() as opened:  # an error below frees everything
            if self._owns_model:
                opened.callback(self.model.close)
            self._open(settings, opened, unified=unified, lanes=lanes)
            opened.pop_all()

    def _open(self, settings: ContextSettings, opened: ExitStack, *, unified: bool, lanes: int) -> None:
        #: settings with the decision on flash attention
        self.settings = settings = replace(
            settings, flash_attention=choose_flash_attention(self.model, settings)
        )
        # Neither shares KV cells: a recurrent state belongs to one path, and windowed layers recycle only
        # cells that a single sequence holds.
        self._shares = not self.model.recurrent and (settings.full_window or not self.model.window)
        self._branches = settings.branches if self._shares else 0
        self.context = LlamaContext(
            self.model, settings, unified=unified or self._branches > 0, extra=lanes * self._branches
        )
        opened.callback(self.context.close)
        self.rollback = detect_rollback(self.context)
        self._samplers = SamplerFactory(self.model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the context, and the model if it was loaded here. Idempotent."""
        self.context.close()
        if self._owns_model:
            self.model.close()

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.model.vocab_size

    @property
    def context_size(self) -> int:
        """Capacity of one sequence in tokens."""
        return self.context.slot_size

    @property
    def max_width(self) -> int:
        """Tokens of one verification step, the last real one included."""
        return self.settings.max_width

    @property
    def eog_ids(self) -> frozenset[int]:
        """Ids that end a generation."""
        return self.model.eog_ids

    @property
    def replays(self) -> bool:
        """Whether accepted tokens are computed again if a draft was accepted in part."""
        return self.rollback.replays

    def sampler(self, sampling: Sampling, prompt_ids: TokenIds) -> Sampler:
        """Return the sampler of one generation after this prompt.

        Raises:
            InvalidTokensError: the prompt has ids outside the vocabulary.
            InvalidConfigError: a bias for a token outside the vocabulary.
            GrammarError: a grammar that is malformed or that this vocabulary cannot produce.
        """
        return self._samplers.make(sampling, prompt_ids)
