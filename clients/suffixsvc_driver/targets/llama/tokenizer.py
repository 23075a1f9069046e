"""The tokenizer of a GGUF model, for draft models of another vocabulary."""

from __future__ import annotations

from typing import Final

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc_driver.targets.llama.model import LlamaModel, SpecialToken

#: prefixes for encoding a continued text with a tokenizer that puts a blank at the start of every text
_ANCHORS: Final = ("\n", "=", "a", "\u4e00")


class LlamaTokenizer:
    """See :class:`suffixsvc_driver.retokenizing.TextTokenizer`.

    Args:
        model: the vocabulary suffices (``vocab_only``). The caller closes it, afterwards.
    """

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self.vocabulary = model.vocabulary
        self.markers = {token.id: token.text for token in model.special_tokens if self._is_marker(token)}
        eos = self.vocabulary.eos_id
        self.ends = tuple(sorted(model.eog_ids, key=lambda token: (token != eos, token)))
        self._blank = self._texts(self._encode("a")) == b" a"

    def encode(self, text: str, begins: bool) -> list[int]:
        """See :class:`suffixsvc_driver.retokenizing.TextTokenizer`.

        Raises:
            VocabularyMismatchError: every anchor merges with the first token of the text.
        """
        if begins or not text or not self._blank:
            return self._encode(text)
        if len(text) > 1 and text.startswith(" "):
            return self._encode(text[1:])  # the tokenizer adds the blank
        for anchor in _ANCHORS:
            ids = self._encode(anchor + text)
            at = self._ids_of_prefix(ids, len(f" {anchor}".encode()))
            if at:
                return ids[at:]
        raise VocabularyMismatchError(
            f"{self._model.path.name} cannot encode a continued text (rule 'round-trip')",
            rule="round-trip",
            expected="a token that begins with it",
            got=repr(text[:40]),
        )

    def _encode(self, text: str) -> list[int]:
        return self._model.tokenize(text, parse_special=False)

    def _is_marker(self, token: SpecialToken) -> bool:
        """Whether a special token is a marker: those that the tokenizer also finds in plain text are text."""
        return self._encode(token.text.decode("utf-8", "replace")) != [token.id]

    def _texts(self, ids: list[int]) -> bytes:
        return b"".join(self.vocabulary.texts[token] for token in ids)

    def _ids_of_prefix(self, ids: list[int], size: int) -> int:
        """Number of ids for the first ``size`` bytes; 0 if no id ends there."""
        for at, token in enumerate(ids, 1):
            size -= len(self.vocabulary.texts[token])
            if size <= 0:
                return at if size == 0 else 0
        return 0
