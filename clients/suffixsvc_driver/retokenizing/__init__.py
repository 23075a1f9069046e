"""Conversion between vocabularies through text, for draft models of another vocabulary.

tokenizer    interface of a tokenizer, and splitting of texts into tokens
following    incremental tokenization, in another vocabulary, of a text that grows and is cut back
translating  both directions: the target's text for the draft model, its drafts for the target
sample       measured loss of a pair of vocabularies on a few texts

This package does not use llama.cpp: ``targets.llama.tokenizer`` is the tokenizer of a GGUF.
"""

from suffixsvc_driver.retokenizing.sample import TextFit, compare_texts
from suffixsvc_driver.retokenizing.tokenizer import TextTokenizer
from suffixsvc_driver.retokenizing.translating import Retokenizer

__all__ = ["Retokenizer", "TextFit", "TextTokenizer", "compare_texts"]
