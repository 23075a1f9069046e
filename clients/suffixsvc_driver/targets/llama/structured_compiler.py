"""Compiler of structured-output values to grammars of a model's vocabulary, with llguidance.

A grammar is compiled, and its first mask computed, on a thread of its own, because some grammars within all
limits may still take long. After :attr:`GrammarCompiler.time_limit` the caller gets an error, and the thread
is left to finish; while two threads do, no further grammar is compiled.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any, Final
from weakref import WeakValueDictionary

from suffixsvc.errors import (
    GrammarError,
    LimitExceededError,
    MissingExtraError,
    SuffixError,
    VocabularyMismatchError,
)
from suffixsvc_driver.sampling.structured import Lark, Regex, Structured, json_options, json_schema
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.structured_grammar import Compiled, StructuredGrammar, brief
from suffixsvc_driver.targets.llama.tokenizer import LlamaTokenizer

#: compiled grammars in the cache
_CACHED: Final = 32
#: default of :attr:`GrammarCompiler.time_limit`, seconds; schemas of agents take milliseconds
_TIME_LIMIT: Final = 5.0
#: compilations that may be left to finish
_MAX_LEFT: Final = 2
#: llguidance's limits, smaller than its own
_LIMITS: Final = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}


class GrammarCompiler:
    """Compiles grammars for one model and caches them. Thread-safe.

    A server calls :meth:`compile` before it schedules a request and keeps the grammar, so that decoding does
    not wait for it: a grammar that is referenced is not compiled again.

    Args:
        model: model of the tokens; the grammars must not outlive it.

    Attributes:
        time_limit: seconds that a compilation may take.
    """

    def __init__(self, model: LlamaModel) -> None:
        self.time_limit = _TIME_LIMIT
        self._model = model
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()
        self._tokenizer: Any = None
        self._compiled: dict[Structured, Compiled] = {}
        #: those that a generation refers to; the cache may have forgotten them
        self._live: WeakValueDictionary[Structured, Compiled] = WeakValueDictionary()
        self._left = 0  # compilations that were left to finish

    def prepare(self) -> None:
        """Make llguidance's tokenizer, which takes about a second for a large vocabulary.

        Otherwise the first call of :meth:`compile` does.

        Raises:
            MissingExtraError: llguidance is not installed.
            GrammarError: the model has no end-of-generation token.
            ModelError: the model was closed.
        """
        self._open_tokenizer()

    def compile(self, value: Structured) -> StructuredGrammar:
        """Return the grammar at its start, an independent copy.

        Raises:
            MissingExtraError: llguidance is not installed.
            GrammarError: the value is malformed, not supported by llguidance, takes too long or permits no
                text; or the model has no end-of-generation token.
            LimitExceededError: others take too long: the same value may be compiled later.
            ModelError: the model was closed.
        """
        tokenizer = self._open_tokenizer()
        with self._lock:
            start = self._compiled.pop(value, None) or self._live.get(value)
            if start is not None:
                self._compiled[value] = start
        if start is None:
            start = self._compile_in_time(value, tokenizer)
            with self._lock:
                self._compiled[value] = self._live[value] = start
                while len(self._compiled) > _CACHED:
                    self._compiled.pop(next(iter(self._compiled)))
        return StructuredGrammar(self._model, tokenizer, start)

    def _open_tokenizer(self) -> Any:
        """Return llguidance's tokenizer, made at the first call."""
        _ = self._model.handle
        with self._tokenizer_lock:
            if self._tokenizer is None:
                if not self._model.eog_ids:
                    raise GrammarError(
                        f"{self._model.path.name} must have an end-of-generation token, which every complete"
                        " grammar needs",
                        remedy="Use a stop rule instead of a grammar.",
                    )
                module, size = _llguidance(), self._model.vocab_size
                ends = sorted(self._model.eog_ids)
                wrapper = module.TokenizerWrapper(_Vocabulary(self._model))
                self._tokenizer = module.LLTokenizer(wrapper, n_vocab=size, eos_token=ends)
        return self._tokenizer

    def _compile_in_time(self, value: Structured, tokenizer: Any) -> Compiled:
        with self._lock:
            if self._left >= _MAX_LEFT:
                raise LimitExceededError(
                    "a grammar must not be compiled while others take too long",
                    got=f"{self._left} of them",
                    remedy="Try again later.",
                )
        out: list[Compiled | BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                out.append(Compiled(_start_of(value, tokenizer)))
            except BaseException as err:  # for the caller; a panic of llguidance is a BaseException
                out.append(err)
            with self._lock:
                done.set()
                self._left -= not waiting

        waiting = True
        threading.Thread(target=run, name="suffixsvc-grammar", daemon=True).start()
        done.wait(self.time_limit)
        with self._lock:
            waiting = done.is_set()
            self._left += not waiting
        if not out:
            raise GrammarError(
                f"the grammar must compile within {self.time_limit:g} s",
                remedy="Simplify its repetitions, alternatives and patterns.",
            )
        if isinstance(out[0], SuffixError):
            raise out[0]
        if isinstance(out[0], BaseException):
            reason = f"{type(out[0]).__name__}: {out[0]}"
            raise GrammarError("llguidance must compile the grammar", got=brief(reason)) from out[0]
        return out[0]


class _Vocabulary:
    """The vocabulary in the form that llguidance takes."""

    def __init__(self, model: LlamaModel) -> None:
        self._tokenizer = LlamaTokenizer(model)
        vocabulary = model.vocabulary
        self.eos_token_id = min(model.eog_ids)
        self.bos_token_id = vocabulary.bos_id if vocabulary.bos_id >= 0 else None
        self.tokens = list(vocabulary.texts)
        self.special_token_ids = sorted(model.textless_ids | model.eog_ids)

    def __call__(self, text: bytes) -> list[int]:
        """Return the canonical tokens of a text that continues another one."""
        words = text.decode("utf-8", "replace")
        try:
            return self._tokenizer.encode(words, False)
        except VocabularyMismatchError:  # an error must not reach llguidance; the bytes decide
            return self._tokenizer.encode(words, True)


def _start_of(value: Structured, tokenizer: Any) -> Any:
    """Return a matcher at the start of the grammar.

    Raises:
        GrammarError: see :meth:`GrammarCompiler.compile`.
    """
    module = _llguidance()
    what, grammar = _source(module, value)
    limits = module.LLParserLimits(**_LIMITS)
    start = module.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if start.is_error():
        raise GrammarError(f"{what} must be supported by llguidance", got=brief(start.get_error()))
    probe = start.deep_copy()
    permitted = any(probe.compute_bitmask())
    if probe.is_error():
        raise GrammarError(f"{what} must be within llguidance's limits", got=brief(probe.get_error()))
    if not permitted or (probe.is_stopped() and not probe.is_accepting()):
        raise GrammarError(f"{what} must permit a text", got=str(probe.stop_reason()))
    return start


def _source(module: Any, value: Structured) -> tuple[str, str]:
    """Return the kind of a value, for messages, and llguidance's form of its grammar."""
    matcher = module.LLMatcher
    if isinstance(value, Lark):
        return "the Lark grammar", matcher.grammar_from_lark(value.text)
    if isinstance(value, Regex):
        return "the regular expression", matcher.grammar_from_regex(value.pattern)
    # "x-guidance" of a schema must not replace these
    options = json_options(value)
    try:
        return "the JSON schema", matcher.grammar_from_json_schema(json_schema(value), overrides=options)
    except ValueError as err:
        raise GrammarError("the JSON schema must be supported by llguidance", got=brief(str(err))) from err


def _llguidance() -> Any:
    try:
        return importlib.import_module("llguidance")
    except ImportError as err:
        raise MissingExtraError("structured", "llguidance") from err
