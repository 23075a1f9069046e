"""A GGUF model through llama.cpp's C API: weights, vocabulary, tokenizer, chat template."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from suffixsvc.errors import InvalidTokensError, LimitExceededError, ModelCorruptError, ModelError
from suffixsvc.fingerprint import tokenizer_fingerprint
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.types import TokenArray, TokenIds
from suffixsvc.values import as_token_array
from suffixsvc_driver.targets.llama.binding import clear_log, llama, recent_log
from suffixsvc_driver.targets.llama.experts import override_experts
from suffixsvc_driver.targets.llama.offload import Offload, describe_device, set_model_params
from suffixsvc_models.gguf_header import check_gguf
from suffixsvc_models.vocabulary import Vocabulary, vocabulary_kind

#: bytes of the head and of the tail of a file that are hashed
_HASHED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A special token, which a text may spell out.

    Attributes:
        strips: whether the tokenizer drops blanks next to it.
    """

    id: int
    text: bytes
    strips: bool


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """Tokens that mark the parts of a text to fill in the middle of."""

    prefix: int
    suffix: int
    middle: int


class LlamaModel(ClosedOnExit):
    """A loaded model. Close it, or use it as a context manager; close its contexts first.

    Args:
        path: a GGUF file.
        vocab_only: load the tokenizer without the weights.
        experts_used: experts per token of a mixture-of-experts model, instead of the file's number. Another
            number makes another model: drafts stay exact, outputs differ.
        offload: the part of it that is on GPUs; None: none.

    Attributes:
        header: the file's header.
        offload: as given; without GPUs for a tokenizer alone.

    Raises:
        ModelNotFoundError, ModelCorruptError: detected before llama.cpp opens the file.
        ModelError: llama.cpp refuses it (an unknown architecture, say), or a GPU has not enough memory.
        InvalidConfigError: ``experts_used`` is not between 1 and the number of experts, there are none, or
            llama.cpp would silently ignore it, because the file has a number for each layer; ``offload``
            names GPUs that llama.cpp does not have.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        vocab_only: bool = False,
        experts_used: int | None = None,
        offload: Offload | None = None,
    ) -> None:
        self.path = Path(path)
        self.header = check_gguf(path)
        self.experts_used = experts_used
        self.offload = Offload() if offload is None or vocab_only else offload
        self._lib = llama()
        params = self._lib.llama_model_default_params()
        arrays = set_model_params(params, self.offload)
        params.vocab_only = vocab_only
        if experts_used is not None:
            overrides = override_experts(self.header, self.path.name, experts_used)
            params.kv_overrides = overrides
        clear_log()
        self._handle = self._lib.llama_model_load_from_file(str(self.path).encode(), params)
        arrays.clear()  # llama.cpp has copied them
        if not self._handle:
            no_memory = recent_log("allocate") if self.offload.gpu_layers else ""
            if "allocate" in no_memory:
                raise ModelError(
                    f"llama.cpp cannot place {self.path.name} on the GPU",
                    expected="enough memory there",
                    got=no_memory,
                    remedy="Use fewer gpu_layers, or a smaller quantization.",
                )
            raise ModelCorruptError(
                f"llama.cpp cannot load {self.path.name}",
                got=recent_log("error loading model") or "no reason given",
                remedy="Is it a text model that this version of llama.cpp knows?",
            )
        self._vocab = self._lib.llama_model_get_vocab(self._handle)
        self.vocab_size: int = self._lib.llama_vocab_n_tokens(self._vocab)

    def close(self) -> None:
        """Free the weights. Idempotent."""
        if self._handle:
            self._lib.llama_model_free(self._handle)
            self._handle = None

    @property
    def handle(self) -> Any:
        """The C pointer, for contexts. Raises ModelError after the model was closed."""
        if not self._handle:
            raise ModelError(f"{self.path.name} was closed", remedy="Load it again.")
        return self._handle

    @property
    def vocab(self) -> Any:
        """The C pointer of the vocabulary, for grammars. Raises ModelError after the model was closed."""
        _ = self.handle
        return self._vocab

    @cached_property
    def digest(self) -> str:
        """:func:`file_digest` of its file, which identifies the model."""
        return file_digest(self.path)

    @cached_property
    def parameters(self) -> int:
        """Number of weights."""
        return int(self._lib.llama_model_n_params(self.handle))

    @cached_property
    def device(self) -> str:
        """The hardware that computes it: "cpu", or the GPUs and what is on them; part of a curve's key."""
        return describe_device(self.offload, self._lib.llama_model_n_layer(self.handle) + 1)

    @cached_property
    def window(self) -> int:
        """Width of the sliding window of windowed layers in tokens; 0 if there are none."""
        return int(self._lib.llama_model_n_swa(self.handle))

    @cached_property
    def recurrent(self) -> bool:
        """Whether some of its layers have a recurrent state, according to llama.cpp."""
        lib = self._lib
        return bool(lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle))

    @cached_property
    def eog_ids(self) -> frozenset[int]:
        """Ids that end a generation."""
        is_eog = self._lib.llama_vocab_is_eog
        return frozenset(i for i in range(self.vocab_size) if is_eog(self._vocab, i))

    @cached_property
    def textless_ids(self) -> frozenset[int]:
        """Ids of control tokens, unknown and unused ones, which no text contains."""
        attr, vocab, module = self._lib.llama_vocab_get_attr, self._vocab, self._lib
        textless = (
            module.LLAMA_TOKEN_ATTR_CONTROL | module.LLAMA_TOKEN_ATTR_UNKNOWN | module.LLAMA_TOKEN_ATTR_UNUSED
        )
        return frozenset(i for i in range(self.vocab_size) if attr(vocab, i) & textless)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Texts, special ids and fingerprint; takes a moment for a large vocabulary."""
        lib, vocab = self._lib, self._vocab
        bos, eos = lib.llama_vocab_bos(vocab), lib.llama_vocab_eos(vocab)
        texts = self._all_token_bytes()
        return Vocabulary(
            kind=vocabulary_kind(lib.llama_vocab_type(vocab)),
            size=self.vocab_size,
            bos_id=bos,
            eos_id=eos,
            add_bos=bool(lib.llama_vocab_get_add_bos(vocab)),
            add_eos=bool(lib.llama_vocab_get_add_eos(vocab)),
            fingerprint=tokenizer_fingerprint(enumerate(texts), {"bos": bos, "eos": eos}),
            texts=texts,
        )

    def _all_token_bytes(self) -> tuple[bytes, ...]:
        """:meth:`token_bytes` of every id, through one buffer, since there may be 150,000."""
        piece, vocab, size = self._lib.llama_token_to_piece, self._vocab, 64
        buffer = ctypes.create_string_buffer(size)
        lengths = ((i, piece(vocab, i, buffer, size, 0, True)) for i in range(self.vocab_size))
        return tuple(buffer.raw[:n] if n >= 0 else self.token_bytes(i) for i, n in lengths)

    @cached_property
    def special_tokens(self) -> tuple[SpecialToken, ...]:
        """Tokens that the tokenizer matches as spelled, before it splits a text into words."""
        attr, vocab, module = self._lib.llama_vocab_get_attr, self._vocab, self._lib
        special = (
            module.LLAMA_TOKEN_ATTR_CONTROL
            | module.LLAMA_TOKEN_ATTR_USER_DEFINED
            | module.LLAMA_TOKEN_ATTR_UNKNOWN
        )
        strips = module.LLAMA_TOKEN_ATTR_LSTRIP | module.LLAMA_TOKEN_ATTR_RSTRIP
        found = ((i, attr(vocab, i)) for i in range(self.vocab_size))
        return tuple(
            SpecialToken(i, self.token_bytes(i), bool(its & strips)) for i, its in found if its & special
        )

    @cached_property
    def infill_tokens(self) -> InfillTokens | None:
        """Tokens to fill in the middle of a text; None if the model was not trained for it."""
        lib, vocab = self._lib, self._vocab
        ids = lib.llama_vocab_fim_pre(vocab), lib.llama_vocab_fim_suf(vocab), lib.llama_vocab_fim_mid(vocab)
        return None if min(ids) < 0 else InfillTokens(*ids)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, special tokens spelled out; empty for an unused id."""
        piece, vocab = self._lib.llama_token_to_piece, self._vocab
        return bytes(
            _filled(ctypes.c_char, 64, lambda buffer, room: piece(vocab, token, buffer, room, 0, True))
        )

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Tokenize a text. ``parse_special`` recognises spelled-out special tokens (chat templates)."""
        ids = self.token_array(text, add_special=add_special, parse_special=parse_special)
        return [int(i) for i in ids.tolist()]

    def token_array(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> TokenArray:
        """Tokenize a text like :meth:`tokenize`, to int32[n]. Releases the GIL."""
        data, tokenize = text.encode(), self._lib.llama_tokenize
        flags = add_special, parse_special
        return _filled(
            ctypes.c_int32,
            len(data) + 8,
            lambda ids, room: tokenize(self._vocab, data, len(data), ids, room, *flags),
        )

    def detokenize(self, token_ids: TokenIds, *, special: bool = False) -> str:
        """Return the text of tokens; bytes that are not valid UTF-8 become U+FFFD."""
        ids = check_ids(token_ids, self.vocab_size)
        array = (ctypes.c_int32 * max(1, len(ids)))(*ids)
        detokenize, head = self._lib.llama_detokenize, (self._vocab, array, len(ids))
        text = _filled(
            ctypes.c_char,
            16 * len(ids) + 64,
            lambda buffer, room: detokenize(*head, buffer, room, False, special),
        )
        return bytes(text).decode("utf-8", "replace")

    def chat(self, messages: Sequence[Mapping[str, str]], *, add_assistant: bool = True) -> str:
        """Apply the model's chat template to messages ({"role": .., "content": ..}); ChatML if the file has
        none. Tokenize the result with ``parse_special``.

        Raises:
            ModelError: a template that llama.cpp does not support.
        """
        template = self._lib.llama_model_chat_template(self.handle, None) or b"chatml"
        pairs = [(m["role"].encode(), m["content"].encode()) for m in messages]
        struct = self._lib.llama_chat_message
        array = (struct * max(1, len(pairs)))(*(struct(role=r, content=c) for r, c in pairs))

        def apply(buffer: Any, room: int) -> int:
            args = (template, array, len(pairs), add_assistant, buffer, room)
            n = int(self._lib.llama_chat_apply_template(*args))
            if n < 0:
                raise ModelError(
                    f"llama.cpp does not support the chat template of {self.path.name}",
                    got=template[:60].decode("utf-8", "replace"),
                    remedy="Build the prompt yourself and tokenize it.",
                )
            return n

        text = _filled(ctypes.c_char, 2 * sum(len(r) + len(c) for r, c in pairs) + 256, apply)
        return bytes(text).decode("utf-8", "replace")


def _filled(kind: Any, room: int, fill: Callable[[Any, int], int]) -> npt.NDArray[Any]:
    """Return what a C function writes into an array, which is enlarged if the function needs more room.

    Args:
        fill: called with an array and its size; returns the size used, or needed (possibly negative).
    """
    while True:
        buffer = (kind * room)()
        n = fill(buffer, room)
        if 0 <= n <= room:
            return np.ctypeslib.as_array(buffer)[:n].copy()  # the buffer may be much larger
        room = abs(n)


def file_digest(path: Path) -> str:
    """Return a hash of a model file's size, head and tail. Reads 2 MiB."""
    size = path.stat().st_size
    digest = xxhash.xxh3_64(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        digest.update(file.read(_HASHED_BYTES))
        file.seek(max(0, size - _HASHED_BYTES))
        digest.update(file.read(_HASHED_BYTES))
    return digest.hexdigest()


def check_ids(token_ids: TokenIds, vocab_size: int) -> list[int]:
    """Validate token ids and return them as a list of ints.

    Raises:
        InvalidTokensError: not a 1-D sequence of integers, or an id outside the vocabulary.
    """
    array = as_token_array(token_ids)
    if array.size and int(array.max()) >= vocab_size:
        raise InvalidTokensError(
            "token ids must be inside the model's vocabulary",
            expected=f"0 .. {vocab_size - 1}",
            got=int(array.max()),
        )
    return [int(i) for i in array.tolist()]


def check_prompt(prompt_ids: TokenIds, vocab_size: int, context_size: int) -> list[int]:
    """Validate a prompt and return it as a list of ints.

    Raises:
        InvalidTokensError: empty, or ids outside the vocabulary.
        LimitExceededError: longer than the context.
    """
    prompt = check_ids(prompt_ids, vocab_size)
    if not prompt:
        raise InvalidTokensError("the prompt must have at least one token", got=0)
    if len(prompt) > context_size:
        raise LimitExceededError(
            "the prompt is longer than the target's context",
            expected=f"at most {context_size} tokens",
            got=len(prompt),
            remedy="Shorten the prompt or give the target a larger context.",
        )
    return prompt
