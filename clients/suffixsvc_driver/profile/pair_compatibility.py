"""Compatibility of a target and a draft model: vocabulary rules, known results, relative cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from suffixsvc_driver.retokenizing import TextFit, compare_texts
from suffixsvc_driver.targets.llama.experts import expert_counts
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.tokenizer import LlamaTokenizer
from suffixsvc_models.gguf_header import GgufHeader
from suffixsvc_models.known_pairs import KnownPair, find_known
from suffixsvc_models.vocabulary import RuleOutcome, Vocabulary, compare_vocabularies


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model file.

    Attributes:
        size_bytes: file size, which a decode step reads except for unused experts.
        header: header of the file.
        vocabulary: with texts.
    """

    path: Path
    size_bytes: int
    header: GgufHeader
    vocabulary: Vocabulary

    @property
    def names(self) -> str:
        """Names of the model, for :func:`find_known`."""
        return f"{self.header.name} {self.path.name}".strip()

    @property
    def active_bytes(self) -> int:
        """Approximate bytes that a step reads; for a mixture of experts, the share of the used ones."""
        experts, used = expert_counts(self.header)
        return self.size_bytes * used // experts if 0 < used < experts else self.size_bytes


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Compatibility of a pair.

    Attributes:
        rules: results of the vocabulary rules, in order.
        known: known results of such a pair.
        cost_ratio: cost of a drafted token relative to a plain step of the target, by the bytes each reads.
        through_text: for different vocabularies, the loss of drafting through text; None if not compared.
    """

    target: ModelFacts
    draft: ModelFacts
    rules: tuple[RuleOutcome, ...]
    known: KnownPair | None
    cost_ratio: float
    through_text: TextFit | None = None

    @property
    def fits(self) -> bool:
        """Whether the draft model's ids can be verified by the target."""
        return all(rule.passed for rule in self.rules)

    @property
    def usable(self) -> bool:
        """Whether the draft model can draft, possibly through text."""
        return self.fits or (self.through_text is not None and self.through_text.works)

    @property
    def token_ratio(self) -> float:
        """Tokens of the draft model per token of the target."""
        return 1.0 if self.fits or self.through_text is None else self.through_text.token_ratio


def _facts(model: LlamaModel) -> ModelFacts:
    return ModelFacts(model.path, model.path.stat().st_size, model.header, model.vocabulary)


def compare_files(target: Path, draft: Path) -> Compatibility:
    """Compare two GGUFs, including drafting through text if their vocabularies differ.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError: an unusable file. llama.cpp aborts the process on
            some damaged files that no check detects: compare untrusted files in a separate process.
    """
    with LlamaModel(target, vocab_only=True) as ours, LlamaModel(draft, vocab_only=True) as theirs:
        large, small = _facts(ours), _facts(theirs)
        pair = Compatibility(
            large,
            small,
            compare_vocabularies(small.vocabulary, large.vocabulary),
            find_known(large.names, small.names),
            small.active_bytes / max(1, large.active_bytes),
        )
        if pair.fits:
            return pair
        return replace(pair, through_text=compare_texts(LlamaTokenizer(ours), LlamaTokenizer(theirs)))
