"""Adapter for Hugging Face transformers: drafts for ``model.generate``.

    with SuffixCache("cache") as cache, SuffixDecoding(cache.namespace("acme/my-model")) as decoding:
        model.generate(input_ids, custom_generate=decoding, max_new_tokens=256)

``custom_generate`` takes a callable that runs the decoding loop after generate()'s own preparation; this one
runs transformers' own assisted decoding, with :class:`SuffixCandidates` as the candidate generator. The loop,
the KV cache and the verification stay transformers'. Assisted decoding supports one sequence at a time.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from suffixsvc.errors import InvalidConfigError, InvalidInputError, MissingExtraError
from suffixsvc.types import BackendNamespace, Draft, TokenArray
from suffixsvc_adapters.tracking.adapter_base import AdapterBase
from suffixsvc_adapters.tracking.session_tracker import SessionTracker
from suffixsvc_adapters.tracking.tracker_types import TrackerConfig

try:
    import torch
    import transformers
    from transformers.generation.candidate_generator import CandidateGenerator
except ImportError as error:
    raise MissingExtraError("huggingface", error.name or "transformers") from error


class SuffixCandidates(CandidateGenerator):  # type: ignore[misc]  # transformers is not installed where mypy runs
    """Candidate generator of one generation.

    Args:
        tracker: source of the drafts.
        max_length: of the whole sequence; candidates never exceed it.
        eos_token_ids: candidates end before any of them, so that the model itself ends its output; may be
            empty.
        vocab_size: of the model.
    """

    requires_model_outputs = False

    def __init__(
        self,
        tracker: SessionTracker,
        max_length: int | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        vocab_size: int | None = None,
    ) -> None:
        self._tracker = tracker
        self._max_length = max_length
        self._eos_token_ids = eos_token_ids
        self._vocab_size = vocab_size
        self._sent = 0  # tokens
        self._newest: torch.LongTensor | None = None

    def get_candidates(self, input_ids: torch.LongTensor, **_: Any) -> tuple[torch.LongTensor, None]:
        """Append candidates to the sequence.

        Args:
            input_ids: int64[1, n].

        Returns:
            int64[1, n + m], and None: candidates have no logits, so verification compares tokens, both with
            greedy decoding and with sampling.

        Raises:
            InvalidInputError: more than one sequence. Failures of the cache raise nothing.
        """
        tokens = _only_sequence(input_ids)
        # a step always emits one token of the model's own
        limit = None if self._max_length is None else max(0, self._max_length - len(tokens) - 1)
        drafted: list[int] = self._query(tokens, limit).token_ids.tolist()
        if not drafted:
            return input_ids, None
        candidates = torch.tensor([drafted], dtype=input_ids.dtype, device=input_ids.device)
        return torch.cat((input_ids, candidates), dim=1), None

    def update_candidate_strategy(
        self, input_ids: torch.LongTensor, scores: torch.FloatTensor, num_matches: int
    ) -> None:
        """Record the sequence after a step; the last step is not followed by :meth:`get_candidates`."""
        self._newest = input_ids

    def end(self) -> None:
        """End the generation and store its output."""
        if self._newest is not None and self._newest.shape[1] > self._sent:
            self._query(_only_sequence(self._newest), 0)
        self._tracker.end(self)

    def _query(self, tokens: TokenArray, limit: int | None) -> Draft:
        written = len(tokens) - self._sent if self._sent else 0
        self._sent = len(tokens)
        return self._tracker.draft(
            tokens,
            hint=self,
            written=written,
            max_draft_tokens=limit,
            vocab_size=self._vocab_size,
            stop_before=self._eos_token_ids,
        )


class SuffixDecoding(AdapterBase):
    """``generate(custom_generate=...)``: any number of generations, one after another or in several threads.

    Args:
        namespace: of the embedded engine or of a client; bind it to the tokenizer.
        config: limits of drafts and sequences.
    """

    def __init__(self, namespace: BackendNamespace, config: TrackerConfig | None = None) -> None:
        self.tracker: SessionTracker = SessionTracker(namespace, config)

    def __call__(
        self,
        model: Any,
        input_ids: torch.LongTensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        """Decode, called by generate() instead of its own decoding loop; return the same value.

        Raises:
            InvalidInputError: a batch, beams, several sequences of one prompt, or a model whose state cannot
                be rolled back.
            InvalidConfigError: this release of transformers lacks the private names that are used.
        """
        _require_assistable(model, input_ids, generation_config)
        ends = getattr(generation_config, "_eos_token_tensor", None)
        eos_token_ids = frozenset() if ends is None else frozenset(ends.flatten().tolist())
        vocab_size = model.config.get_text_config().vocab_size
        candidates = SuffixCandidates(self.tracker, generation_config.max_length, eos_token_ids, vocab_size)
        token = _CANDIDATES.set(candidates)
        try:
            return _assisted_decoding(model)(
                _with_candidates(model),
                input_ids,
                logits_processor=logits_processor,
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                **model_kwargs,
            )
        finally:
            _CANDIDATES.reset(token)
            candidates.end()


#: the candidate generator of this thread's running generation
_CANDIDATES: ContextVar[SuffixCandidates] = ContextVar("candidates")


#: model class -> its subclass that returns our candidate generator
_SUBCLASSES: Final[dict[type[Any], type[Any]]] = {}


def _subclass_of(kind: type[Any]) -> type[Any]:
    def _get_candidate_generator(_self: Any, *_: Any, **__: Any) -> SuffixCandidates:
        return _CANDIDATES.get()

    if kind not in _SUBCLASSES:
        members = {"_get_candidate_generator": _get_candidate_generator}
        _SUBCLASSES[kind] = type(kind.__name__, (kind,), members)
    return _SUBCLASSES[kind]


def _with_candidates(model: Any) -> Any:
    """Return a view of the model with our candidate generator; weights and state are shared, not modified."""
    view: Any = object.__new__(_subclass_of(type(model)))
    object.__setattr__(view, "__dict__", model.__dict__)
    return view


def _assisted_decoding(model: Any) -> Any:
    loop = getattr(type(model), "_assisted_decoding", None)
    if loop is None or not hasattr(type(model), "_get_candidate_generator"):
        raise InvalidConfigError(
            "this release of transformers has no supported assisted decoding",
            expected="GenerationMixin._assisted_decoding and ._get_candidate_generator",
            got=f"transformers {transformers.__version__}",
            remedy="Install the release that `make adapters` installs.",
        )
    return loop


def _require_assistable(model: Any, input_ids: torch.LongTensor, generation_config: Any) -> None:
    for name in ("num_beams", "num_return_sequences"):
        number = getattr(generation_config, name, None) or 1
        if number != 1:
            raise InvalidInputError(
                "assisted generation supports one sequence at a time", expected=f"{name}=1", got=number
            )
    _only_sequence(input_ids)
    if getattr(model, "_is_stateful", False):
        raise InvalidInputError(
            "assisted generation cannot roll this model's state back",
            expected="a model whose cache can be cropped",
            got=type(model).__name__,
        )


def _only_sequence(input_ids: torch.LongTensor) -> TokenArray:
    if input_ids.ndim != 2 or input_ids.shape[0] != 1:
        raise InvalidInputError(
            "assisted generation supports one sequence at a time",
            expected="input_ids of shape (1, n)",
            got=f"shape {tuple(input_ids.shape)}",
            remedy="Call generate() once per prompt; several threads may generate at once.",
        )
    return np.asarray(input_ids[0].cpu().numpy(), np.int32)
