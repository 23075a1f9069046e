"""Can one model draft for another, and what would a drafted token cost?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from suffixsvc_driver.models.known_pairs import KnownPair, find_known
from suffixsvc_driver.retokenizing import TextFit, compare_texts
from suffixsvc_driver.targets.gguf_header import GgufHeader
from suffixsvc_driver.targets.llama_model import LlamaModel
from suffixsvc_driver.targets.llama_tokenizer import LlamaTokenizer
from suffixsvc_driver.vocabulary import RuleOutcome, Vocabulary, compare_vocabularies

__all__ = ["Compatibility", "ModelFacts", "compare_files", "compare_models", "read_facts"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model file is.

    Attributes:
        size_bytes: of the file: what a decode step reads, but for the experts that it leaves out.
        header: of the file.
        vocabulary: with texts.
    """

    path: Path
    size_bytes: int
    header: GgufHeader
    vocabulary: Vocabulary

    @property
    def names(self) -> str:
        """What it may be known by."""
        return f"{self.header.name} {self.path.name}".strip()

    @property
    def active_bytes(self) -> int:
        """About what a step reads: of a mixture of experts its share of those that are used."""
        architecture = self.header.architecture
        experts = self.header.values.get(f"{architecture}.expert_count", 0)
        used = self.header.values.get(f"{architecture}.expert_used_count", 0)
        if isinstance(experts, int) and isinstance(used, int) and 0 < used < experts:
            return self.size_bytes * used // experts
        return self.size_bytes


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What is known of a pair.

    Attributes:
        rules: the vocabulary rules, in order.
        known: what became of a pair like this elsewhere.
        cost_ratio: of a drafted token to a plain step of the target, by the bytes each reads.
        through_text: where they do not fit: what drafting through text would lose; None if nobody looked.
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
        """Whether it can draft, if only through text."""
        return self.fits or (self.through_text is not None and self.through_text.works)

    @property
    def token_ratio(self) -> float:
        """Tokens of the draft model for a token of the target."""
        return 1.0 if self.fits or self.through_text is None else self.through_text.token_ratio


def read_facts(path: Path) -> ModelFacts:
    """Read a GGUF's header and, through llama.cpp, its vocabulary.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError. llama.cpp aborts the process on some files that
        no check finds: whoever reads files of others does it in a process of its own.
    """
    with LlamaModel(path, vocab_only=True) as model:
        return _facts(model)


def _facts(model: LlamaModel) -> ModelFacts:
    return ModelFacts(model.path, model.path.stat().st_size, model.header, model.vocabulary)


def compare_files(target: Path, draft: Path) -> Compatibility:
    """What is known of two GGUFs, drafting through text included where their vocabularies differ.

    Raises:
        As :func:`read_facts` does.
    """
    with LlamaModel(target, vocab_only=True) as ours, LlamaModel(draft, vocab_only=True) as theirs:
        pair = compare_models(_facts(ours), _facts(theirs))
        if pair.fits:
            return pair
        return replace(pair, through_text=compare_texts(LlamaTokenizer(ours), LlamaTokenizer(theirs)))


def compare_models(target: ModelFacts, draft: ModelFacts) -> Compatibility:
    """What is known of this pair."""
    return Compatibility(
        target,
        draft,
        compare_vocabularies(draft.vocabulary, target.vocabulary),
        find_known(target.names, draft.names),
        draft.active_bytes / max(1, target.active_bytes),
    )
