"""Prompts that ask for the text between two others, by a model's fill-in-the-middle tokens:

    <prefix> text before <suffix> text after <middle>

The order and the tokenization are llama-server's.
"""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc.errors import InvalidInputError
from suffixsvc_driver.targets.llama.model import LlamaModel


def infill_prompt(model: LlamaModel, before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of a prompt.

    Args:
        model: the model.
        before: tokens of the text before the answer.
        after: tokens of the text after the answer.

    Raises:
        InvalidInputError: the model has no fill-in-the-middle tokens.
    """
    marks = model.infill_tokens
    if marks is None:
        raise InvalidInputError("the model must have fill-in-the-middle tokens", got=model.path.name)
    vocabulary = model.vocabulary
    bos = [vocabulary.bos_id] if vocabulary.add_bos else []
    return (*bos, marks.prefix, *before, marks.suffix, *after, marks.middle)
