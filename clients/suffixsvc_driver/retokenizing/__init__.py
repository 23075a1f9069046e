"""Drafting with a model of another vocabulary: through text.

tokenizer    what is asked of a tokenizer, and texts cut with it
following    the ids of another vocabulary for a text that grows and is cut back, token by token
translating  both ways: the target's text for the draft model, its drafts for the target
sample       what a pair of vocabularies loses on the way, on a few texts

No llama.cpp in here: ``targets.llama_tokenizer`` is the tokenizer of a GGUF.
"""

from suffixsvc_driver.retokenizing.sample import TextFit, compare_texts
from suffixsvc_driver.retokenizing.tokenizer import TextTokenizer
from suffixsvc_driver.retokenizing.translating import Retokenizer

__all__ = ["Retokenizer", "TextFit", "TextTokenizer", "compare_texts"]
